-- A derived table of the lunar birthday layer: the users of one lunar month and day.
-- A row is a claim: a shard (physical source table) says that this user has this lunar birthday.
CREATE TABLE IF NOT EXISTS {table} (
  `shard_id` bigint unsigned NOT NULL COMMENT 'Source table that says it: 63-bit hash of source, database, table, generation',
  `user_id` bigint unsigned NOT NULL COMMENT 'The user',
  `birthday` char(5) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Lunar MM-DD, the same in all rows of the table',
  `birthday_type` char(5) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'The calendar that the user celebrates by: solar or lunar',
  `is_sent` tinyint NOT NULL DEFAULT 0 COMMENT '1 = sent for sent_occurrence, belongs to the dispatcher',
  `send_time` datetime(6) NULL COMMENT 'When it was sent, UTC, belongs to the dispatcher',
  `sent_occurrence` smallint NULL COMMENT 'The lunar year that is_sent means, belongs to the dispatcher',
  `lsn` bigint unsigned NOT NULL COMMENT 'Version: position in the binlog of the source (epoch, file, position / 16)',
  PRIMARY KEY (`shard_id`, `user_id`),
  KEY `user_id` (`user_id`)
) ENGINE=InnoDB COMMENT='Derived by Anabranch from the user tables'
