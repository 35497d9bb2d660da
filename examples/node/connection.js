// Connect to Kafka and the schema registry, from the variables that every Stepstream process reads.
import { SchemaRegistry, SchemaType } from "@kafkajs/confluent-schema-registry";
import avro from "avsc";
import kafkajs from "kafkajs";
import lz4 from "lz4js";
import { readFileSync } from "node:fs";

const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = kafkajs;

// Stepstream's producers compress with LZ4; kafkajs has no codec for it.
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => Buffer.from(lz4.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
});

// 64-bit integers: numbers up to 2^53, BigInt beyond. By default, avsc fails on records with larger ones.
const long = avro.types.LongType.__with({
  fromBuffer: (buffer) => {
    const value = buffer.readBigInt64LE();
    return Number.isSafeInteger(Number(value)) ? Number(value) : value;
  },
  toBuffer: (value) => {
    const buffer = Buffer.alloc(8);
    buffer.writeBigInt64LE(BigInt(value));
    return buffer;
  },
  fromJSON: (value) => value,
  toJSON: (value) => Number(value),
  isValid: (value) => Number.isSafeInteger(value) || typeof value === "bigint",
  compare: (one, other) => (one < other ? -1 : one > other ? 1 : 0),
});
const isLong = (schema) => schema === "long" || schema.type === "long";

const variable = (name, otherwise = "") => process.env[`STEPSTREAM_${name}`] || otherwise;

// PEM files, as librdkafka takes them: a private authority, and a client's certificate with its key for mutual TLS.
function tls() {
  const read = (name) => (variable(name) ? readFileSync(variable(name)) : undefined);
  const cert = read("KAFKA_SSL_CERTIFICATE_LOCATION");
  return {
    ca: read("KAFKA_SSL_CA_LOCATION"),
    cert,
    key: read("KAFKA_SSL_KEY_LOCATION") ?? cert,
    passphrase: variable("KAFKA_SSL_KEY_PASSWORD") || undefined,
  };
}

export function connectKafka(clientId) {
  const protocol = variable("KAFKA_SECURITY_PROTOCOL", "PLAINTEXT");
  return new Kafka({
    clientId,
    // Brokers may have the protocol in front, as `SASL_SSL://host:port`.
    brokers: variable("KAFKA_BOOTSTRAP", "127.0.0.1:9092").split(",").map((broker) => broker.replace(/^\w+:\/\//, "")),
    logLevel: logLevel.WARN,
    ssl: protocol.endsWith("SSL") ? tls() : false,
    sasl: protocol.startsWith("SASL")
      ? {
          mechanism: variable("KAFKA_SASL_MECHANISM", "SCRAM-SHA-512").toLowerCase(),
          username: variable("KAFKA_SASL_USERNAME"),
          password: variable("KAFKA_SASL_PASSWORD"),
        }
      : undefined,
  });
}

export function connectRegistry() {
  const [username, ...password] = variable("SCHEMA_REGISTRY_USER_INFO").split(":");
  return new SchemaRegistry(
    {
      host: variable("SCHEMA_REGISTRY_URL", "http://127.0.0.1:8081"),
      auth: username ? { username, password: password.join(":") } : undefined,
    },
    { [SchemaType.AVRO]: { typeHook: (schema) => (isLong(schema) ? long : undefined) } },
  );
}
