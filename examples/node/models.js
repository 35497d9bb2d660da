// Follow models: print their state, then each change of versions, decisions and workers, one line of JSON each, as
// `stepstream watch --json` does. `node models.js [MODEL]`, or import `followModels`.
import { pathToFileURL } from "node:url";
import { connectKafka, connectRegistry } from "./connection.js";
import { Models } from "./model_fold.js";
import { v7 as uuidv7 } from "uuid";

const TOPICS = ["checkpoints", "rollouts", "worker-status"];
const QUIET_MS = 2000;

// Call `onUpdate` for the state of now, then for each change; return a function that ends it.
export async function followModels(onUpdate, model) {
  const kafka = connectKafka("node-example");
  const registry = connectRegistry();
  const models = new Models(model);
  const missing = await endsOf(kafka);
  let isCurrent = false;
  let quiet;

  const showState = () => {
    if (isCurrent) return;
    isCurrent = true;
    clearTimeout(quiet);
    models.state(Date.now() * 1000).forEach(onUpdate);
  };
  // The last offset may be the marker of a transaction, which no reader gets: then silence is the sign of the end.
  const waitForQuiet = () => {
    clearTimeout(quiet);
    if (!isCurrent) quiet = setTimeout(showState, QUIET_MS);
  };

  const consumer = kafka.consumer({ groupId: `node-example-${uuidv7()}` });
  await consumer.connect();
  await consumer.subscribe({ topics: TOPICS, fromBeginning: true });
  consumer.on(consumer.events.GROUP_JOIN, waitForQuiet);
  await consumer.run({
    eachBatch: async ({ batch, resolveOffset }) => {
      for (const message of batch.messages) {
        const record = message.value && (await registry.decode(message.value));
        const writtenUs = Number(message.timestamp) * 1000;
        const updates = models.apply(batch.topic, message.key?.toString() ?? "", record, writtenUs);
        if (isCurrent) updates.forEach(onUpdate);
        resolveOffset(message.offset);
      }
      const partition = `${batch.topic} ${batch.partition}`;
      if (BigInt(batch.lastOffset()) + 1n >= (missing.get(partition) ?? 0n)) missing.delete(partition);
      if (missing.size) waitForQuiet();
      else showState();
    },
  });
  if (!missing.size) showState();
  return () => consumer.disconnect();
}

// The end offset of each partition that has records.
async function endsOf(kafka) {
  const admin = kafka.admin();
  await admin.connect();
  const ends = new Map();
  for (const topic of TOPICS) {
    for (const { partition, high, low } of await admin.fetchTopicOffsets(topic)) {
      if (high !== low) ends.set(`${topic} ${partition}`, BigInt(high));
    }
  }
  await admin.disconnect();
  return ends;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const stop = await followModels((update) => console.log(JSON.stringify(update)), process.argv[2]);
  for (const signal of ["SIGINT", "SIGTERM"]) {
    process.once(signal, async () => {
      await stop();
      process.exit(0);
    });
  }
}
