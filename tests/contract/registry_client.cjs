// Exercise a registry with an unmodified @kafkajs/confluent-schema-registry: one JSON job on standard input, one JSON
// answer on standard output; records are base64 of the Confluent wire format.
const { readFileSync } = require("node:fs");
const { SchemaRegistry, SchemaType } = require("@kafkajs/confluent-schema-registry");

async function main() {
  const job = JSON.parse(readFileSync(0, "utf8"));
  const registry = new SchemaRegistry({ host: job.url });
  const { id } = await registry.register(
    { type: SchemaType.AVRO, schema: job.schema },
    { subject: job.subject, compatibility: "FULL_TRANSITIVE" },
  );
  // A second client has nothing cached: what it knows comes from the registry.
  const fresh = new SchemaRegistry({ host: job.url });
  const answer = {
    id,
    latest: await fresh.getLatestSchemaId(job.subject),
    lookup: await fresh.getRegistryIdBySchema(job.subject, { type: SchemaType.AVRO, schema: job.schema }),
    encoded: [],
    decoded: [],
  };
  for (const record of job.records) answer.encoded.push((await fresh.encode(id, record)).toString("base64"));
  for (const text of job.encoded) answer.decoded.push(await fresh.decode(Buffer.from(text, "base64")));
  console.log(JSON.stringify(answer));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
