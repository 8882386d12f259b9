-- The account that reads the binlog of a captured MariaDB server (10.6 or newer). Run as an administrator.
--
-- Replace before use:
--   {capture_password}  the account's password, as in the configuration file
--   {client_host}       where Anabranch connects from: an address, or a pattern such as 10.0.0.%
--   user\_%, inventory\_%, flux\_00\_%  the captured databases; repeat the last GRANT for each further pattern
--
-- The account may read row changes of the whole server (the binlog cannot be narrowed), and rows of captured
-- databases only. It can write nothing. Connections without TLS are refused.

CREATE USER IF NOT EXISTS 'anabranch_capture'@'{client_host}'
  IDENTIFIED BY '{capture_password}' REQUIRE SSL;

-- REPLICATION SLAVE: request the binlog. BINLOG MONITOR: list binlog files and positions for start, lag and purge checks.
GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO 'anabranch_capture'@'{client_host}';

-- SLAVE MONITOR: on a replica that reconciliations read (replica_url), how far it is behind; a reconciliation waits for it.
GRANT SLAVE MONITOR ON *.* TO 'anabranch_capture'@'{client_host}';

-- SELECT: column definitions for pre-flight, and rows for the first copy and for reconciliation.
-- Whole databases: tables are made and renamed while it runs, and a pattern can stand for databases only. Who wants the other
-- columns hidden grants SELECT (columns) table by table; a table that is made later is then read once it was granted.
GRANT SELECT ON `user\_%`.* TO 'anabranch_capture'@'{client_host}';
GRANT SELECT ON `inventory\_%`.* TO 'anabranch_capture'@'{client_host}';
GRANT SELECT ON `flux\_00\_%`.* TO 'anabranch_capture'@'{client_host}';
