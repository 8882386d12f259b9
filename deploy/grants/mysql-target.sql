-- The account that writes derived tables on a MySQL server (8.0 or newer). Run as an administrator.
--
-- Replace before use:
--   {apply_password}  the account's password, as in the configuration file
--   {client_host}     where Anabranch connects from: an address, or a pattern such as 10.0.0.%
--   birthday\_%, serial\_code\_%  the databases of derived tables; anabranch% holds progress and fences
--
-- The account can touch nothing outside of these databases. Connections without TLS are refused. With
-- `partial_revokes = ON` MySQL takes database patterns literally: then grant each database by its name.

CREATE USER IF NOT EXISTS 'anabranch_apply'@'{client_host}'
  IDENTIFIED BY '{apply_password}' REQUIRE SSL;

-- CREATE, ALTER, INDEX and DROP serve `anabranch setup`; without them run its printed DDL yourself.
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, DROP
  ON `birthday\_%`.* TO 'anabranch_apply'@'{client_host}';

GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, DROP
  ON `serial\_code\_%`.* TO 'anabranch_apply'@'{client_host}';

GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, DROP
  ON `anabranch%`.* TO 'anabranch_apply'@'{client_host}';
