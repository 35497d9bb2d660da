// Publish steps and feedback by the protocol: Avro with the registry's schemas, keyed by trajectory, with CloudEvents
// headers. Use one publisher per process.
import kafkajs from "kafkajs";
import { v7 as uuidv7 } from "uuid";

const { CompressionTypes, Partitioners } = kafkajs;

const TYPES = { steps: "stepstream.Step", feedback: "stepstream.Feedback" };

export class Publisher {
  #producer;
  #registry;
  #schemaIds = new Map();
  #source;
  #defaults;

  // `defaults` are the fields that all events of this agent share: producer, tenant, consent.
  constructor(kafka, registry, defaults) {
    this.#registry = registry;
    this.#defaults = defaults;
    this.#source = defaults.producer;
    this.#producer = kafka.producer({
      // Kafka stores a retried request once, in order.
      idempotent: true,
      maxInFlightRequests: 1,
      // Murmur2, like all Stepstream producers: a trajectory's steps and feedback share a partition.
      createPartitioner: Partitioners.DefaultPartitioner,
      allowAutoTopicCreation: false,
    });
  }

  async connect() {
    // `stepstream topics apply` registers the schemas. A producer only looks them up, so that it cannot change the
    // registry by accident.
    for (const topic of Object.keys(TYPES)) {
      this.#schemaIds.set(topic, await this.#registry.getLatestSchemaId(`${topic}-value`));
    }
    await this.#producer.connect();
  }

  async disconnect() {
    await this.#producer.disconnect();
  }

  step(fields) {
    return this.#publish("steps", fields);
  }

  feedback(fields) {
    return this.#publish("feedback", fields);
  }

  // Resolves to the event when all in-sync replicas have it. To send it again after an error, pass the same event_id:
  // duplicates count once.
  async #publish(topic, fields) {
    const record = { event_id: uuidv7(), occurred_at_us: nowMicros(), ...this.#defaults, ...fields };
    const headers = {
      ce_specversion: "1.0",
      ce_id: record.event_id,
      ce_type: TYPES[topic],
      ce_source: this.#source,
      ce_time: new Date(record.occurred_at_us / 1000).toISOString(),
      "content-type": "application/avro",
    };
    // Omitted fields take the schema's defaults.
    const value = await this.#registry.encode(this.#schemaIds.get(topic), record);
    await this.#producer.send({
      topic,
      acks: -1,
      compression: CompressionTypes.GZIP,
      messages: [{ key: record.trajectory_id, value, headers }],
    });
    return { topic, headers, record };
  }
}

function nowMicros() {
  return Math.round((performance.timeOrigin + performance.now()) * 1000);
}
