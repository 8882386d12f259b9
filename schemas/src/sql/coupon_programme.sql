-- What is known of each programme beside its runs.
CREATE TABLE IF NOT EXISTS {table} (
  `programme` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Name of the programme',
  `next_day` date NULL COMMENT 'The first day that has no run',
  `leap_days` mediumtext CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'JSON: by year, when 29 February is celebrated',
  PRIMARY KEY (`programme`)
) ENGINE=InnoDB COMMENT='Coupon programmes of Anabranch, never change or delete rows'
