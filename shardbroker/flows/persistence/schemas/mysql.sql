-- Tables of [persistence.mysql]. Times are Unix ms; mid and msgid are ids of messages, which begin with the time.
-- Client ids and topics are compared byte by byte, with blanks at their end, as MQTT compares them. The longest key of InnoDB has
-- 3072 bytes: a client id up to 1024, a topic up to 2048.
CREATE TABLE IF NOT EXISTS mqtt_client (
  id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY,
  clientid varbinary(1024) NOT NULL,
  state tinyint,
  node varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  online_at bigint,
  offline_at bigint,
  created bigint,
  UNIQUE KEY mqtt_client_clientid (clientid),
  KEY mqtt_client_node (node)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS mqtt_sub (
  id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY,
  clientid varbinary(1024) NOT NULL,
  topic varbinary(2048) NOT NULL,
  qos tinyint,
  created bigint,
  UNIQUE KEY mqtt_sub_clientid_topic (clientid, topic)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS mqtt_msg (
  id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY,
  msgid varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  topic varbinary(2048) NOT NULL,
  sender varbinary(1024),
  node varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  qos tinyint NOT NULL,
  retain tinyint,
  payload longblob,
  arrived bigint NOT NULL,
  UNIQUE KEY mqtt_msg_msgid (msgid),
  KEY mqtt_msg_topic (topic, msgid)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS mqtt_retain (
  id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY,
  topic varbinary(2048) NOT NULL,
  msgid varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  sender varbinary(1024),
  node varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  qos tinyint,
  payload longblob,
  arrived bigint NOT NULL,
  UNIQUE KEY mqtt_retain_topic (topic)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS mqtt_acked (
  id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY,
  clientid varbinary(1024) NOT NULL,
  topic varbinary(2048) NOT NULL,
  mid varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  created bigint,
  UNIQUE KEY mqtt_acked_clientid_topic (clientid, topic)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;
