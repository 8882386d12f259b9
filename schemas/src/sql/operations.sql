-- What people had commands and the live page change: one row before a change begins, and one after its end. Rows are
-- only ever added.
CREATE TABLE IF NOT EXISTS {table} (
  `number` bigint unsigned NOT NULL AUTO_INCREMENT COMMENT 'Order of the rows, with gaps',
  `operation` char(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'The operation: both of its rows have it',
  `phase` varchar(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'begun, done, failed',
  `at` datetime(6) NOT NULL COMMENT 'UTC',
  `who` varchar(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'Account of the command, task of a daemon, or name in http.operators',
  `via` varchar(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'command, page',
  `host` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'Machine of the process',
  `version` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Version of Anabranch',
  `command` text CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'The command, without keys and values of conditions',
  `before_state` text CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL COMMENT 'State before the change, in the row of the beginning',
  `after_state` text CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL COMMENT 'What was done, or the fault, in the row of the end',
  PRIMARY KEY (`number`)
) ENGINE=InnoDB COMMENT='Operations of people by Anabranch, never change or delete rows'
