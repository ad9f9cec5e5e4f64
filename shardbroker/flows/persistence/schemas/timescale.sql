-- Table of [persistence.timescale]. Times are Unix ms; a chunk has a day.
CREATE TABLE IF NOT EXISTS mqtt_msg (
  msgid text NOT NULL,
  topic text NOT NULL,
  sender text,
  node text,
  qos smallint NOT NULL,
  retain smallint,
  payload bytea,
  arrived bigint NOT NULL,
  UNIQUE (msgid, arrived)
);
SELECT create_hypertable('mqtt_msg', 'arrived', chunk_time_interval => 86400000, if_not_exists => TRUE);
CREATE INDEX IF NOT EXISTS mqtt_msg_topic ON mqtt_msg (topic, arrived);
