-- Codes whose mapping rows were touched: written in the transaction that touches them, drained into the cache.
CREATE TABLE IF NOT EXISTS {table} (
  `id` bigint unsigned NOT NULL AUTO_INCREMENT COMMENT 'Order of writing',
  `projection` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Projection, as in the configuration',
  `codes` mediumblob NOT NULL COMMENT 'Stored values one after the other, each after one byte with its length',
  `written_at` datetime(6) NOT NULL COMMENT 'UTC',
  `drained_at` datetime(6) NULL COMMENT 'When the cache had them removed, UTC, kept for an hour',
  PRIMARY KEY (`id`),
  KEY `drained_at` (`projection`, `drained_at`, `id`)
) ENGINE=InnoDB COMMENT='What Anabranch has to remove from its cache'
