-- The account that reads the binlog of a captured MySQL server (8.0 or newer). Run as an administrator.
--
-- Replace before use:
--   {capture_password}  the account's password, as in the configuration file
--   {client_host}       where Anabranch connects from: an address, or a pattern such as 10.0.0.%
--   user\_%, inventory\_%, flux\_00\_%  the captured databases; repeat the last GRANT for each further pattern
--
-- The account may read row changes of the whole server (the binlog cannot be narrowed), and rows of captured
-- databases only. It can write nothing. Connections without TLS are refused. With `partial_revokes = ON` MySQL takes
-- database patterns literally: then grant each captured database by its name.

CREATE USER IF NOT EXISTS 'anabranch_capture'@'{client_host}'
  IDENTIFIED BY '{capture_password}' REQUIRE SSL;

-- REPLICATION SLAVE: request the binlog. REPLICATION CLIENT: list binlog files and positions for start, lag and purge checks,
-- and on a replica that reconciliations read (replica_url), how far it is behind.
GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'anabranch_capture'@'{client_host}';

-- SELECT: column definitions for pre-flight, and rows for the first copy and for reconciliation.
-- Whole databases: tables are made and renamed while it runs, a pattern can stand for databases only, and SHOW CREATE TABLE
-- needs a right on the whole table.
GRANT SELECT ON `user\_%`.* TO 'anabranch_capture'@'{client_host}';
GRANT SELECT ON `inventory\_%`.* TO 'anabranch_capture'@'{client_host}';
GRANT SELECT ON `flux\_00\_%`.* TO 'anabranch_capture'@'{client_host}';
