-- One shard of the main layer: a `user` table. Capture needs user_id and birthday; it reads lunar_birthday and
-- birthday_type where the configuration names them, and steps over the rest.
--
-- Replace before use:
--   {database}, {table}  physical names, such as user_07 and user_042
--   {birthday_type}      DATE, DATETIME (any precision) or VARCHAR; text is YYYY-MM-DD, a time of day may follow

CREATE TABLE IF NOT EXISTS `{database}`.`{table}` (
  -- Never changes: everything derived is keyed by it and by the shard table that says it.
  user_id        BIGINT UNSIGNED NOT NULL,
  -- Decides the shard. When it changes, the row may move to another table, database and server.
  user_name      VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  -- NULL, zero and impossible dates are allowed here; they are in no derived table.
  birthday       {birthday_type} NULL,
  phone          VARCHAR(32) NULL,
  -- Another character set than the connection's, as old tables have it: its bytes are not UTF-8.
  address        VARCHAR(255) CHARACTER SET gbk NULL,
  -- MM-DD of the lunar calendar; months have 29 or 30 days.
  lunar_birthday CHAR(5) NULL,
  -- Which of the two birthdays counts: 'solar', 'lunar'; NULL means solar.
  birthday_type  VARCHAR(8) NULL,
  PRIMARY KEY (user_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4
