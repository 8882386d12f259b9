-- The rows that decide who gets a coupon: one a user, programme and occurrence. Nothing deletes them.
CREATE TABLE IF NOT EXISTS {table} (
  `user_id` bigint unsigned NOT NULL COMMENT 'User',
  `programme` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Name of the programme',
  `occurrence` char(10) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'solar:2027 or lunar:2027',
  `day` date NOT NULL COMMENT 'The day that is celebrated',
  `state` varchar(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'reserved, issued, settled, refused, failed',
  `reason` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'Why it was refused',
  `first_called_at` datetime(6) NULL COMMENT 'UTC: the first call of unknown outcome',
  `attempt` binary(16) NOT NULL COMMENT 'The granter that works on it',
  `changed_at` datetime(6) NOT NULL COMMENT 'UTC',
  `tries` int unsigned NOT NULL COMMENT 'Calls that were answered about this user without a coupon',
  `coupon` varchar(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'As it was reserved',
  `by_hand` tinyint NOT NULL COMMENT '1 = a person sent it again',
  `absent_since` datetime(6) NULL COMMENT 'UTC: since when no source table has a row of the user',
  `version` char(8) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'Version of the programme that reserved it, NULL = from before this column',
  PRIMARY KEY (`user_id`, `programme`, `occurrence`),
  KEY `of_day` (`programme`, `day`, `user_id`)
) ENGINE=InnoDB COMMENT='Coupon ledger of Anabranch, never change or delete rows'
