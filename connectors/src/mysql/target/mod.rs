//! A MySQL/MariaDB server as a store of derived rows.
