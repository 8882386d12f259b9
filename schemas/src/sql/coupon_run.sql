-- One row a day of a programme.
CREATE TABLE IF NOT EXISTS {table} (
  `programme` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Name of the programme',
  `day` date NOT NULL COMMENT 'The day that is celebrated, whenever the run works',
  `rules` mediumtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'TOML: the programme as it was when the day began',
  `revision` binary(16) NOT NULL COMMENT 'Changed by whoever begins to freeze',
  `sweep` binary(16) NOT NULL COMMENT 'Number of the newest sweep',
  `sweeps` varbinary(240) NULL COMMENT 'Numbers of the 15 sweeps before it: 16 bytes each, big endian, the newest last',
  `frozen` tinyint unsigned NOT NULL COMMENT 'Waves that were frozen completely',
  `cursor_table` smallint unsigned NOT NULL COMMENT 'Where the freeze goes on: place of the table among the tables of the day',
  `cursor_after` bigint unsigned NULL COMMENT 'Last user of it that was read',
  `members` bigint unsigned NOT NULL COMMENT 'Frozen cohort',
  `hash_sum` binary(16) NOT NULL COMMENT 'Sum of a hash of each member, modulo 2^128',
  `misplaced` bigint unsigned NOT NULL COMMENT 'Rows that say another birthday than their table',
  `is_after_barrier` tinyint NOT NULL COMMENT '1 = each wave so far waited for all lanes',
  `is_closed` tinyint NOT NULL COMMENT '1 = each member has a coupon, a refusal or a dead letter',
  `reconciliation` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'The reconciliation that midnight relied on, NULL = none',
  `reconciliation_ended_at` datetime(6) NULL COMMENT 'UTC: when it ended',
  PRIMARY KEY (`programme`, `day`)
) ENGINE=InnoDB COMMENT='Coupon days of Anabranch, never change or delete rows'
