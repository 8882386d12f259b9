-- One table of payment documents, atoms or composites (capture needs the columns that are not marked).
--
-- Replace before use:
--   {database}, {table}  physical names, such as flux_00_0 and atom_05_01

CREATE TABLE IF NOT EXISTS `{database}`.`{table}` (
  -- 31 digits: they say database and table, too.
  id        CHAR(31) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  -- The document that it follows; NULL for recharges and withdrawals.
  parent_id CHAR(31) CHARACTER SET ascii COLLATE ascii_bin NULL,
  -- In the currency's smallest unit, or with a decimal point.
  amount    DECIMAL(20, 4) NULL,
  created   DATETIME(3) NULL,
  -- Not captured: what the payment system does with a document.
  state     TINYINT NOT NULL DEFAULT 0,
  PRIMARY KEY (id),
  KEY parent (parent_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4
