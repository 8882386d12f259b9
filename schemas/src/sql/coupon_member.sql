-- The frozen cohorts.
CREATE TABLE IF NOT EXISTS {table} (
  `programme` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Name of the programme',
  `day` date NOT NULL COMMENT 'The day that is celebrated',
  `user_id` bigint unsigned NOT NULL COMMENT 'User',
  `calendar` tinyint unsigned NOT NULL COMMENT '0 = solar, 1 = lunar',
  `shards` varbinary(8192) NOT NULL COMMENT 'Source tables that say so: 8 bytes each, big endian',
  PRIMARY KEY (`programme`, `day`, `user_id`, `calendar`)
) ENGINE=InnoDB COMMENT='Cohorts of coupon days of Anabranch, never change or delete rows'
