// Turn the records of three topics into updates of models: what changed, and the state. No I/O.
const SILENT_US = 3e6 * Number(process.env.STEPSTREAM_INFERENCE_STATUS_EVERY_S || 2);

// The fold of the three topics' records to updates. Per key the newest record counts; a record of null deletes its key.
export class Models {
  #wanted;
  #versions = new Map(); // model -> Map(version -> Checkpoint)
  #rollouts = new Map(); // model -> Rollout
  #workers = new Map(); // worker -> WorkerStatus
  #writtenUs = new Map(); // worker -> time of its status by the broker's clock: workers' clocks differ

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
    const live = [...this.#workers]
      .filter(([key, status]) => status.state !== "stopping" && nowUs - this.#writtenUs.get(key) <= SILENT_US)
      .map(([, status]) => status);
    return [
      ...models.map((model) => this.#update("state", model, { version: this.served(model).stable })),
      ...live.map((status) => this.#workerUpdate(status)),
    ];
  }

  // Apply one record, written to the log at `writtenUs`; return the updates that it causes: none or one.
  apply(topic, key, record, writtenUs) {
    if (topic === "worker-status") return this.#applyWorker(key, record, writtenUs);
    const named = record ?? (topic === "rollouts" ? { model: key } : readName(key));
    if (named === null || (this.#wanted && named.model !== this.#wanted)) return [];
    if (topic === "rollouts") return this.#applyRollout(named.model, record);
    return this.#applyCheckpoint(named.model, named.version, record);
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

  #applyWorker(worker, status, writtenUs) {
    const before = this.#workers.get(worker);
    this.#workers.delete(worker);
    this.#writtenUs.delete(worker);
    if (status === null || (this.#wanted && status.model !== this.#wanted)) return [];
    this.#workers.set(worker, status);
    this.#writtenUs.set(worker, writtenUs ?? status.occurred_at_us);
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

// Model and version of a key `MODEL@VERSION`; null: it has another form, as a key that a person deleted by mistake.
function readName(key) {
  const [, model, version] = /^([^]+)@([0-9]{1,9})$/.exec(key) ?? [];
  return model === undefined ? null : { model, version: Number(version) };
}

// A worker from before tracks names only `version`, which serves all.
function tracksOf(status) {
  if (!status.tracks.length) return status.version === null ? {} : { stable: status.version };
  return Object.fromEntries(status.tracks.map(({ track, version }) => [track, version]));
}
