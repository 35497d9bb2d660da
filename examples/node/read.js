// Print all records of the topics on the command line, one line of JSON each, from the beginning until interrupted.
import { connectKafka, connectRegistry } from "./connection.js";
import { v7 as uuidv7 } from "uuid";

const topics = process.argv.slice(2);
if (!topics.length) {
  console.error("usage: node read.js TOPIC...");
  process.exit(2);
}

const registry = connectRegistry();
const consumer = connectKafka("node-example").consumer({ groupId: `node-example-${uuidv7()}` });

for (const signal of ["SIGINT", "SIGTERM"]) {
  process.once(signal, async () => {
    await consumer.disconnect();
    process.exit(0);
  });
}

await consumer.connect();
await consumer.subscribe({ topics, fromBeginning: true });
await consumer.run({
  eachMessage: async ({ topic, partition, message }) => {
    // In a compacted topic, a record without a value deletes its key.
    let record = null;
    try {
      record = message.value && (await registry.decode(message.value));
    } catch (error) {
      // Without an answer of the registry the record may be valid: kafkajs tries again.
      if (error.status && error.status !== 404) throw error;
      console.error(`skipped ${topic}, partition ${partition}, offset ${message.offset}: ${error.message}`);
      return;
    }
    const event = { topic, partition, offset: message.offset, key: message.key?.toString(), record };
    console.log(JSON.stringify(event, (_, value) => (typeof value === "bigint" ? `${value}` : value)));
  },
});
