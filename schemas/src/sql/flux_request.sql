-- Request keys, each with what was given out with it.
CREATE TABLE IF NOT EXISTS {table} (
  `request_key` binary(32) NOT NULL COMMENT 'SHA-256 of the key that the caller sent',
  `number` bigint unsigned NOT NULL AUTO_INCREMENT COMMENT 'In the order of arrival: the oldest are removed first',
  `first_identifier` char(31) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'The others follow it number by number',
  `count` int unsigned NOT NULL COMMENT 'Identifiers that were given out',
  `asked_at` datetime(6) NOT NULL COMMENT 'By the clock of this server, in UTC',
  PRIMARY KEY (`request_key`),
  KEY `number` (`number`)
) ENGINE=InnoDB COMMENT='Request keys of Anabranch'
