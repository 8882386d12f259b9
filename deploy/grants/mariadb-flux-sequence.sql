-- The two accounts of a MariaDB server (10.6 or newer) that holds the counters of payment documents. Run as an
-- administrator.
--
-- Replace before use:
--   {setup_password}, {sequence_password}  the passwords, as in the configuration file (sequence_setup_url and
--                   sequence_url of [flux])
--   {client_host}   where Anabranch connects from: an address, or a pattern such as 10.0.0.%
--   flux_sequence, flux\_sequence  the setting sequence_database
--
-- No account can touch anything outside of this database, and none can drop or alter a table or delete a counter.
-- Connections without TLS are refused.

-- anabranch_sequence_setup makes tables and counters, for `anabranch setup` alone.
CREATE USER IF NOT EXISTS 'anabranch_sequence_setup'@'{client_host}'
  IDENTIFIED BY '{setup_password}' REQUIRE SSL;

-- anabranch_sequence gives out identifiers: the daemon and all other commands.
CREATE USER IF NOT EXISTS 'anabranch_sequence'@'{client_host}'
  IDENTIFIED BY '{sequence_password}' REQUIRE SSL;

-- INSERT: every row of every counter, made once. Each day takes the row of the day sixteen days before it.
GRANT CREATE, SELECT, INSERT ON `flux\_sequence`.* TO 'anabranch_sequence_setup'@'{client_host}';

-- A counter that is gone must be missed, so whoever leases from it cannot make it.
GRANT SELECT, UPDATE ON `flux\_sequence`.* TO 'anabranch_sequence'@'{client_host}';

-- Request keys come and go. A server grants rights on a table that does not exist yet only together with CREATE, which
-- is taken away again.
GRANT CREATE, INSERT, DELETE ON `flux_sequence`.`flux_request` TO 'anabranch_sequence'@'{client_host}';
REVOKE CREATE ON `flux_sequence`.`flux_request` FROM 'anabranch_sequence'@'{client_host}';
