-- Progress rows that were made once: a row that is here and whose progress is gone was lost, not new.
CREATE TABLE IF NOT EXISTS {table} (
  `projection` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Projection, as in the configuration',
  `source` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Source, as in the configuration',
  `enrolled_at` datetime(6) NOT NULL COMMENT 'When its progress rows were made, UTC',
  PRIMARY KEY (`projection`, `source`)
) ENGINE=InnoDB COMMENT='For which sources Anabranch has made progress rows'
