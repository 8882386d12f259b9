-- A derived table of the mapping layer: codes of one length class whose number, modulo the tables, is the table's.
-- A row is a claim: a shard (physical source table) says that this device has this code as this kind.
CREATE TABLE IF NOT EXISTS {table} (
  `value` varbinary(255) NOT NULL COMMENT 'The exact bytes of the code (MEID in capitals), beyond 255: the first 223 and SHA-256',
  `shard_id` bigint unsigned NOT NULL COMMENT 'Source table that says it: 63-bit hash of source, database, table, generation',
  `uuid` varbinary(64) NOT NULL COMMENT 'The device, as text',
  `kind` tinyint unsigned NOT NULL COMMENT '1 imei1, 2 imei2, 3 meid, 4 box_no, 5 item_code',
  `lsn` bigint unsigned NOT NULL COMMENT 'Version: position in the binlog of the source (epoch, file, position / 16)',
  PRIMARY KEY (`value`, `shard_id`, `uuid`, `kind`),
  KEY `shard_id` (`shard_id`, `uuid`)
) ENGINE=InnoDB COMMENT='Derived by Anabranch from the serial code tables'
