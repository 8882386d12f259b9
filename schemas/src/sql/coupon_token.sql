-- One row: the last two tokens. A register outside of this server has one of them, or somebody restored the server.
CREATE TABLE IF NOT EXISTS {table} (
  `number` tinyint unsigned NOT NULL COMMENT '1',
  `latest` binary(16) NOT NULL COMMENT 'Token of the last issue, or of a take-in: its marker or its new chain',
  `previous` binary(16) NULL COMMENT 'Token of the issue before it',
  `issued_at` datetime(6) NULL COMMENT 'UTC: the last issue, NULL = none since this column is there',
  PRIMARY KEY (`number`)
) ENGINE=InnoDB COMMENT='Tokens of the coupon ledger of Anabranch, never change or delete rows'
