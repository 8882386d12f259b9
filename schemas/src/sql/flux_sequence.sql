-- One table of counters of payment documents' identifiers: those of one user partition. Each day takes the row of the
-- day sixteen days before it, so rows are made once and only ever updated.
CREATE TABLE IF NOT EXISTS {table} (
  `region` tinyint unsigned NOT NULL COMMENT 'Digit 10 of the identifiers',
  `side` tinyint unsigned NOT NULL COMMENT 'Digit 17 of the identifiers: 0 main, 1 fail-over',
  `slot` tinyint unsigned NOT NULL COMMENT 'Days since 1970-01-01 modulo 16',
  `date` date NOT NULL COMMENT 'Digits 1 to 8 of the identifiers; it only rises',
  `next` int unsigned NOT NULL COMMENT 'Every number below it was leased; 100000000 = used up',
  PRIMARY KEY (`region`, `side`, `slot`)
) ENGINE=InnoDB COMMENT='Counters of Anabranch, never lower a number, never delete or copy rows'
