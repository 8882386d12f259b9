-- Ledger rows that are or were dead letters.
CREATE TABLE IF NOT EXISTS {table} (
  `programme` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Name of the programme',
  `user_id` bigint unsigned NOT NULL COMMENT 'User',
  `occurrence` char(10) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'solar:2027 or lunar:2027',
  `is_open` tinyint NOT NULL COMMENT '1 = listed: a person decides, or it was sent again',
  PRIMARY KEY (`programme`, `user_id`, `occurrence`)
) ENGINE=InnoDB COMMENT='Dead letters of coupon days of Anabranch, never change or delete rows'
