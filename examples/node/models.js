// Follow models: print their state, then each change of versions, decisions and workers, one line of JSON each, as
// `stepstream watch --json` does. `node models.js [MODEL]`, or import `followModels`.
import { pathToFileURL } from "node:url";
import { connectKafka, connectRegistry } from "./connection.js";
import { v7 as uuidv7 } from "uuid";

const TOPICS = ["checkpoints", "rollouts", "worker-status"];
const SILENT_US = 3e6 * Number(process.env.STEPSTREAM_INFERENCE_STATUS_EVERY_S || 2);
const QUIET_MS = 2000;

// The fold of the three topics' records to updates. Per key the newest record counts; a record of null deletes its key.
export class Models {
  #wanted;
  #versions = new Map(); // model -> Map(version -> Checkpoint)
  #rollouts = new Map(); // model -> Rollout
  #workers = new Map(); // worker -> WorkerStatus

  constructor(model) {
    this.#wanted = model;
  }

  // Without a decision, `stable` is the newest version that was not removed.
  served(model) {
    const present = [...(this.#versions.get(model) ?? new Map()).values()].filter((c) => c.removed_at_us === null);
    const newest = present.length ? Math.max(...present.map((checkpoint) => checkpoint.version)) : null;
    const rollout = this.#rollouts.get(model);
    return {
      stable: rollout?.stable_version ?? newest,
      canary: rollout?.canary_version ?? null,
      canary_share: rollout?.canary_version != null ? rollout.canary_share : null,
      follows_newest: rollout?.stable_version == null,
      newest,
      pinned: rollout?.pinned_versions.length ? rollout.pinned_versions : null,
    };
  }

  // One update for each model and each live worker.
  state(nowUs) {
    const models = [...new Set([...this.#versions.keys(), ...this.#rollouts.keys()])].sort();
    const live = [...this.#workers.values()].filter(
      (status) => status.state !== "stopping" && nowUs - status.occurred_at_us <= SILENT_US,
    );
    return [
      ...models.map((model) => this.#update("state", model, { version: this.served(model).stable })),
      ...live.map((status) => this.#workerUpdate(status)),
    ];
  }

  // Apply one record; return the updates that it causes: none or one.
  apply(topic, key, record) {
    if (topic === "worker-status") return this.#applyWorker(key, record);
    const at = key.lastIndexOf("@");
    const model = record?.model ?? (topic === "checkpoints" ? key.slice(0, at) : key);
    if (this.#wanted && model !== this.#wanted) return [];
    if (topic === "rollouts") return this.#applyRollout(model, record);
    return this.#applyCheckpoint(model, record?.version ?? Number(key.slice(at + 1)), record);
  }

  #applyCheckpoint(model, version, checkpoint) {
    if (!this.#versions.has(model)) this.#versions.set(model, new Map());
    const versions = this.#versions.get(model);
    const before = versions.get(version);
    const wasThere = before !== undefined && before.removed_at_us === null;
    if (checkpoint === null) versions.delete(version);
    else versions.set(version, checkpoint);
    if (checkpoint === null || checkpoint.removed_at_us !== null) {
      const why = { version, reason: checkpoint?.removal_reason, occurred_at_us: checkpoint?.removed_at_us };
      return wasThere ? [this.#update("removed", model, why)] : [];
    }
    if (wasThere && before.event_id === checkpoint.event_id) return [];
    return [this.#update("published", model, { version, occurred_at_us: checkpoint.occurred_at_us })];
  }

  #applyRollout(model, rollout) {
    const before = this.#rollouts.get(model);
    if (rollout === null) {
      this.#rollouts.delete(model);
      return before ? [this.#update("follow", model, { version: this.served(model).stable })] : [];
    }
    this.#rollouts.set(model, rollout);
    if (before?.event_id === rollout.event_id) return [];
    const { action, reason, author, occurred_at_us } = rollout;
    const about = { reason, author, occurred_at_us, version: this.served(model).stable };
    if (action === "canary") about.version = rollout.canary_version;
    if (action === "pin" || action === "unpin") {
      const [old, now] = [before?.pinned_versions ?? [], rollout.pinned_versions];
      about.version = [...now, ...old].find((version) => now.includes(version) !== old.includes(version));
    }
    return [this.#update(action || "decided", model, about)];
  }

  #applyWorker(worker, status) {
    const before = this.#workers.get(worker);
    this.#workers.delete(worker);
    if (status === null || (this.#wanted && status.model !== this.#wanted)) return [];
    this.#workers.set(worker, status);
    const facts = (one) => JSON.stringify([one.model, one.state, one.reason, tracksOf(one)]);
    return before && facts(before) === facts(status) ? [] : [this.#workerUpdate(status)];
  }

  #workerUpdate(status) {
    const { worker_id: worker, state, reason, occurred_at_us } = status;
    return this.#update("worker", status.model, { worker, state, reason, occurred_at_us, tracks: tracksOf(status) });
  }

  #update(change, model, fields) {
    const all = { change, model, ...this.served(model), ...fields };
    return Object.fromEntries(Object.entries(all).filter(([, value]) => value != null && value !== ""));
  }
}

// A worker from before tracks names only `version`, which serves all.
function tracksOf(status) {
  if (!status.tracks.length) return status.version === null ? {} : { stable: status.version };
  return Object.fromEntries(status.tracks.map(({ track, version }) => [track, version]));
}

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
        const updates = models.apply(batch.topic, message.key.toString(), record);
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
