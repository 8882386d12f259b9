//! A MySQL/MariaDB server as a source of changes.
