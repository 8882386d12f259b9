-- Days on which a user gets no coupon: a refusal closes a day and not an occurrence.
CREATE TABLE IF NOT EXISTS {table} (
  `user_id` bigint unsigned NOT NULL COMMENT 'User',
  `programme` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Name of the programme',
  `day` date NOT NULL COMMENT 'The day that is celebrated',
  `calendar` tinyint unsigned NOT NULL COMMENT '0 = solar, 1 = lunar',
  `wave` tinyint unsigned NULL COMMENT 'The wave that it closes, NULL = a person withdrew the refusal',
  `reason` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Why',
  PRIMARY KEY (`user_id`, `programme`, `day`, `calendar`)
) ENGINE=InnoDB COMMENT='Refusals of coupon days of Anabranch, never change or delete rows'
