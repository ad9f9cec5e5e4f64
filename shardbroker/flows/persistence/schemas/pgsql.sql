-- Tables of [persistence.pgsql]. Times are Unix ms; mid and msgid are ids of messages, which begin with the time.
CREATE TABLE IF NOT EXISTS mqtt_client (
  id bigserial PRIMARY KEY,
  clientid text NOT NULL UNIQUE,
  state smallint,
  node text,
  online_at bigint,
  offline_at bigint,
  created bigint
);
CREATE INDEX IF NOT EXISTS mqtt_client_node ON mqtt_client (node);
CREATE TABLE IF NOT EXISTS mqtt_sub (
  id bigserial PRIMARY KEY,
  clientid text NOT NULL,
  topic text NOT NULL,
  qos smallint,
  created bigint,
  UNIQUE (clientid, topic)
);
CREATE TABLE IF NOT EXISTS mqtt_msg (
  id bigserial PRIMARY KEY,
  msgid text NOT NULL UNIQUE,
  topic text NOT NULL,
  sender text,
  node text,
  qos smallint NOT NULL,
  retain smallint,
  payload bytea,
  arrived bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS mqtt_msg_topic ON mqtt_msg (topic, msgid);
CREATE TABLE IF NOT EXISTS mqtt_retain (
  id bigserial PRIMARY KEY,
  topic text NOT NULL UNIQUE,
  msgid text NOT NULL,
  sender text,
  node text,
  qos smallint,
  payload bytea,
  arrived bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS mqtt_acked (
  id bigserial PRIMARY KEY,
  clientid text NOT NULL,
  topic text NOT NULL,
  mid text NOT NULL,
  created bigint,
  UNIQUE (clientid, topic)
);
