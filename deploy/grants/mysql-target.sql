-- The two accounts of a MySQL server with derived tables (8.0 or newer). Run as an administrator.
--
-- Replace before use:
--   {setup_password}, {apply_password}  the passwords, as in the configuration file (setup_url and url of the target)
--   {client_host}   where Anabranch connects from: an address, or a pattern such as 10.0.0.%
--   birthday\_%, serial\_code\_%, flux\_relations  the databases of derived tables
--   anabranch       the target's control_database: progress, the histories of reconciliations and operations, the outbox of a cache
--   anabranch_coupons, anabranch\_coupons  the same name with `_coupons` behind it: the coupon ledger
--
-- No account can touch anything outside of these databases, and none can drop or alter a table. Connections without TLS
-- are refused.
-- With `partial_revokes = ON` MySQL takes database patterns literally: then grant each database by its name.

-- anabranch_setup makes databases and tables, for `anabranch setup` alone: its password need not be where the daemon runs.
CREATE USER IF NOT EXISTS 'anabranch_setup'@'{client_host}'
  IDENTIFIED BY '{setup_password}' REQUIRE SSL;

-- anabranch_apply writes rows: the daemon and all other commands.
CREATE USER IF NOT EXISTS 'anabranch_apply'@'{client_host}'
  IDENTIFIED BY '{apply_password}' REQUIRE SSL;

-- SELECT: what exists, and whether derived tables hold rows that no progress tells of.
GRANT CREATE, SELECT ON `birthday\_%`.* TO 'anabranch_setup'@'{client_host}';
GRANT CREATE, SELECT ON `serial\_code\_%`.* TO 'anabranch_setup'@'{client_host}';
GRANT CREATE, SELECT ON `flux\_relations`.* TO 'anabranch_setup'@'{client_host}';
GRANT CREATE, SELECT ON `anabranch`.* TO 'anabranch_setup'@'{client_host}';
-- INSERT and UPDATE: the first progress of each lane, unless it is there.
GRANT CREATE, INSERT, UPDATE ON `anabranch`.`progress` TO 'anabranch_setup'@'{client_host}';
GRANT CREATE, INSERT, UPDATE ON `anabranch`.`enrolled` TO 'anabranch_setup'@'{client_host}';

-- The coupon ledger and its first token.
GRANT CREATE, SELECT ON `anabranch\_coupons`.* TO 'anabranch_setup'@'{client_host}';
GRANT CREATE, INSERT, UPDATE ON `anabranch_coupons`.`coupon_token` TO 'anabranch_setup'@'{client_host}';

GRANT SELECT, INSERT, UPDATE, DELETE ON `birthday\_%`.* TO 'anabranch_apply'@'{client_host}';
GRANT SELECT, INSERT, UPDATE, DELETE ON `serial\_code\_%`.* TO 'anabranch_apply'@'{client_host}';
GRANT SELECT, INSERT, UPDATE, DELETE ON `flux\_relations`.* TO 'anabranch_apply'@'{client_host}';

-- Each control table has its own rights: the histories (`reconciliations`, `operations`, `coupon_reports`) can be read and added to, not changed. A server
-- grants rights on a table that does not exist yet only together with CREATE, which is taken away again.
GRANT CREATE, SELECT, UPDATE ON `anabranch`.`progress` TO 'anabranch_apply'@'{client_host}';
GRANT CREATE, SELECT ON `anabranch`.`enrolled` TO 'anabranch_apply'@'{client_host}';
GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON `anabranch`.`retired` TO 'anabranch_apply'@'{client_host}';
GRANT CREATE, SELECT, INSERT ON `anabranch`.`reconciliations` TO 'anabranch_apply'@'{client_host}';
GRANT CREATE, SELECT, INSERT ON `anabranch`.`operations` TO 'anabranch_apply'@'{client_host}';
GRANT CREATE, SELECT, INSERT ON `anabranch`.`coupon_reports` TO 'anabranch_apply'@'{client_host}';
GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON `anabranch`.`outbox` TO 'anabranch_apply'@'{client_host}';
GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON `anabranch`.`cache` TO 'anabranch_apply'@'{client_host}';
REVOKE CREATE ON `anabranch`.`progress` FROM 'anabranch_apply'@'{client_host}';
REVOKE CREATE ON `anabranch`.`enrolled` FROM 'anabranch_apply'@'{client_host}';
REVOKE CREATE ON `anabranch`.`retired` FROM 'anabranch_apply'@'{client_host}';
REVOKE CREATE ON `anabranch`.`reconciliations` FROM 'anabranch_apply'@'{client_host}';
REVOKE CREATE ON `anabranch`.`operations` FROM 'anabranch_apply'@'{client_host}';
REVOKE CREATE ON `anabranch`.`coupon_reports` FROM 'anabranch_apply'@'{client_host}';
REVOKE CREATE ON `anabranch`.`outbox` FROM 'anabranch_apply'@'{client_host}';
REVOKE CREATE ON `anabranch`.`cache` FROM 'anabranch_apply'@'{client_host}';

-- Nothing in the coupon ledger is ever deleted.
GRANT SELECT, INSERT, UPDATE ON `anabranch\_coupons`.* TO 'anabranch_apply'@'{client_host}';
