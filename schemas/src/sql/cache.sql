-- What is known of the cache of a projection. Without a row its content is not known, and it is emptied first.
CREATE TABLE IF NOT EXISTS {table} (
  `projection` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Projection, as in the configuration',
  `incarnation` varchar(8192) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Life of the servers into which all was drained',
  `time_to_live_ms` bigint unsigned NOT NULL COMMENT 'What entries live at most',
  PRIMARY KEY (`projection`)
) ENGINE=InnoDB COMMENT='The cache that Anabranch drains its outbox into'
