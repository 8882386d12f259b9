-- A derived table of the relation index: payment documents of one user partition, and documents of other partitions
-- whose parent is in this one. A row is a claim: a shard (physical source table) says that this document exists.
CREATE TABLE IF NOT EXISTS {table} (
  `id` varbinary(31) NOT NULL COMMENT 'The 31 digits of the document',
  `shard_id` bigint unsigned NOT NULL COMMENT 'Source table that says it: 63-bit hash of source, database, table, generation',
  `lsn` bigint unsigned NOT NULL COMMENT 'Version: position in the binlog of the source (epoch, file, position / 16)',
  `parent_id` varbinary(64) NULL COMMENT 'The document that it follows, as the source has it, of a longer text the first 64 bytes',
  `amount` varbinary(40) NULL COMMENT 'As the source has it, in decimal digits',
  `created` varbinary(32) NULL COMMENT 'As the source has it: YYYY-MM-DD hh:mm:ss[.ffffff], with Z for a TIMESTAMP',
  PRIMARY KEY (`id`, `shard_id`),
  KEY `shard_id` (`shard_id`, `id`),
  KEY `parent_id` (`parent_id`, `id`)
) ENGINE=InnoDB COMMENT='Derived by Anabranch from the tables of payment documents'
