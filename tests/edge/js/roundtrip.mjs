// Connects with MQTT.js, subscribes, publishes to itself at each QoS and prints what came back as JSON.
import { readFileSync } from "node:fs";
import mqtt from "mqtt";

const [url, topic, cafile, version] = process.argv.slice(2);
const options = { protocolVersion: Number(version), reconnectPeriod: 0, connectTimeout: 8000, clean: true };
if (cafile) options.ca = readFileSync(cafile);
const client = mqtt.connect(url, options);
const got = [];
const payloads = ["zero", "one", "x".repeat(100000)];
client.on("error", (error) => { console.error(error.message); process.exit(1); });
client.on("message", (_topic, payload, packet) => {
  got.push([payload.toString().slice(0, 4), payload.length, packet.qos]);
  if (got.length === payloads.length) { console.log(JSON.stringify(got)); client.end(false, () => process.exit(0)); }
});
client.on("connect", async () => {
  await client.subscribeAsync(topic, { qos: 2 });
  for (const [qos, payload] of payloads.entries()) await client.publishAsync(topic, payload, { qos });
});
setTimeout(() => { console.error("no end in time"); process.exit(2); }, 15000);
