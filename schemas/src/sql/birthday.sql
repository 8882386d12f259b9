-- A derived table of the birthday layer: the users of one month and day.
-- A row is a claim: a shard (physical source table) says that this user has this birthday.
CREATE TABLE IF NOT EXISTS {table} (
  `shard_id` bigint unsigned NOT NULL COMMENT 'Source table that says it: 63-bit hash of source, database, table, generation',
  `user_id` bigint unsigned NOT NULL COMMENT 'The user',
  `birthday` char(5) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'MM-DD, the same in all rows of the table',
  `is_sent` tinyint NOT NULL DEFAULT 0 COMMENT '1 = sent for sent_occurrence, belongs to the dispatcher',
  `send_time` datetime(6) NULL COMMENT 'When it was sent, UTC, belongs to the dispatcher',
  `sent_occurrence` smallint NULL COMMENT 'The year celebrated that is_sent means, belongs to the dispatcher',
  `lsn` bigint unsigned NOT NULL COMMENT 'Version: position in the binlog of the source (epoch, file, position / 16)',
  PRIMARY KEY (`shard_id`, `user_id`),
  KEY `user_id` (`user_id`)
) ENGINE=InnoDB COMMENT='Derived by Anabranch from the user tables'
