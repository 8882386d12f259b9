-- What each day of a coupon programme has granted, as its dispatcher reported it. Rows are only ever added: each is
-- signed over the one before it, so a row that was changed or taken away shows.
CREATE TABLE IF NOT EXISTS {table} (
  `number` bigint unsigned NOT NULL COMMENT 'From 1, without a gap',
  `id` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Programme, day, and noon or closed',
  `ended_at` datetime(6) NOT NULL COMMENT 'UTC',
  `verdict` varchar(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'clean, incomplete, failed',
  `report` mediumtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'JSON, as anabranch dispatch report --json prints it',
  `previous` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Signature of the row before, empty = the first',
  `signature` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'HMAC-SHA-256 over number, id, previous and report by reconcile.signing_key, SHA-256 without one',
  PRIMARY KEY (`number`)
) ENGINE=InnoDB COMMENT='Reports of coupon days by Anabranch, never change or delete rows'
