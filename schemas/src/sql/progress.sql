-- How far each lane is. Written in the same transaction as the rows of its tables; back both up together.
CREATE TABLE IF NOT EXISTS {table} (
  `projection` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Projection, as in the configuration',
  `source` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Source, as in the configuration',
  `lane` int unsigned NOT NULL COMMENT 'Number of the lane, from 0',
  `lanes` int unsigned NOT NULL COMMENT 'Number of lanes that the tables were shared out to',
  `layout` varchar(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'Layout of the tables that this row belongs to',
  `revision` bigint unsigned NOT NULL COMMENT 'Rises by one with each transaction: the fence against a second writer',
  `position` bigint unsigned NOT NULL COMMENT 'Lsn up to which everything is in the tables',
  `highest_position` bigint unsigned NOT NULL COMMENT 'Highest Lsn ever, while position is below, the lane replays',
  `resume_file` varchar(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'Binlog file to start reading again',
  `resume_position` bigint unsigned NOT NULL COMMENT 'Position in resume_file, always the start of a transaction',
  `resume_gtid_set` mediumtext CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'GTIDs of the transactions before it',
  `server_flavor` varchar(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'mariadb or mysql, empty = nothing applied yet',
  `server_id` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Server that wrote the binlog: server_uuid or server_id',
  `message_sequence` bigint unsigned NULL COMMENT 'Stream sequence of the last message applied, NULL = none yet',
  `message_id` varchar(255) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'Id of that message',
  `committed_at_us` bigint unsigned NOT NULL COMMENT 'Commit time in the source of the newest change, microseconds since 1970, 0 = unknown',
  `rows_applied` bigint unsigned NOT NULL COMMENT 'Row mutations applied since the lane was made',
  `checksum` int unsigned NULL COMMENT 'CRC-32 over the other columns, NULL = accepted by an operator as it is',
  `updated_at` datetime(6) NOT NULL COMMENT 'When this row was written, UTC',
  PRIMARY KEY (`projection`, `source`, `lane`)
) ENGINE=InnoDB COMMENT='Progress of the lanes of Anabranch, never insert, change or delete rows by hand'
