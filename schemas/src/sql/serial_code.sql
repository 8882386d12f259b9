-- One shard of the inventory's serial table, or of its history (capture needs the columns that are not marked).
--
-- Replace before use:
--   {database}, {table}  physical names, such as inventory_3 and serial_code_17
--   {uuid_type}          BIGINT UNSIGNED, or VARCHAR(64) of decimal digits

CREATE TABLE IF NOT EXISTS `{database}`.`{table}` (
  -- Decides the shard: database = uuid % 5, table = uuid % 64. Never changes.
  uuid             {uuid_type} NOT NULL,
  first_agent_code VARCHAR(32) NULL,
  -- 15 digits: 8 of the type, 6 of the serial number, 1 check digit.
  imei1            VARCHAR(32) NULL,
  imei2            VARCHAR(32) NULL,
  -- 14 hexadecimal digits.
  meid             VARCHAR(32) NULL,
  -- 18 characters for phones, any length for other devices; a box holds many devices.
  box_no           VARCHAR(600) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  item_code        VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  warehouse_code   VARCHAR(32) NULL,
  account_id       BIGINT NULL,
  sku_code         VARCHAR(64) NULL,
  -- Not captured: what the inventory does with a device.
  status           TINYINT NOT NULL DEFAULT 0,
  out_time         DATETIME(3) NULL,
  out_request      VARCHAR(64) NULL,
  PRIMARY KEY (uuid)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4
