-- Source tables that left by a retention rule (`removal = "retain"`): derived rows of the shard whose lsn is not above the
-- position keep standing. A row is written in the same transaction as the lane's progress; back both up together.
CREATE TABLE IF NOT EXISTS {table} (
  `projection` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Projection, as in the configuration',
  `shard_id` bigint unsigned NOT NULL COMMENT 'Source table: 63-bit hash of source, database, table, generation',
  `lane` int unsigned NOT NULL COMMENT 'Number of the lane, from 0',
  `position` bigint unsigned NOT NULL COMMENT 'Lsn at which the table was dropped, truncated or renamed away',
  `source` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Source, as in the configuration',
  `source_database` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'Database of the source table',
  `source_table` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'Name of the source table',
  `retired_at` datetime(6) NOT NULL COMMENT 'When the lane passed it, UTC',
  PRIMARY KEY (`projection`, `shard_id`, `lane`, `position`)
) ENGINE=InnoDB COMMENT='Retired source tables of Anabranch, never insert, change or delete rows by hand'
