package example;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Publishes steps and feedback by the protocol: Avro with the registry's schemas, keyed by trajectory, with CloudEvents
 * headers. Use one per process.
 */
final class Publisher implements AutoCloseable {
    /** A schema with its id in the registry. */
    record Registered(int id, Schema schema) {}

    private final KafkaProducer<String, byte[]> producer;
    private final Map<String, Registered> schemas = new HashMap<>();

    /** Looks up the schemas that {@code stepstream topics apply} registered, and connects to Kafka. */
    Publisher() throws IOException, InterruptedException {
        for (String topic : new String[] {"steps", "feedback"}) {
            // A producer only looks schemas up, so that it cannot change the registry by accident.
            schemas.put(topic, lookUp(topic + "-value"));
        }
        // Idempotent, acks=all and murmur2 by key are this client's defaults.
        producer = new KafkaProducer<>(connection(), new StringSerializer(), new ByteArraySerializer());
    }

    Schema schema(String topic) {
        return schemas.get(topic).schema();
    }

    /**
     * Returns when all in-sync replicas have the event. To send it again after an error, pass the same record:
     * duplicates count once.
     */
    void publish(String topic, GenericRecord event) throws Exception {
        String trajectory = event.get("trajectory_id").toString();
        ProducerRecord<String, byte[]> record = new ProducerRecord<>(topic, trajectory, encode(topic, event));
        long micros = (Long) event.get("occurred_at_us");
        Map.of(
                        "ce_specversion", "1.0",
                        "ce_id", event.get("event_id").toString(),
                        "ce_type", event.getSchema().getFullName(),
                        "ce_source", event.get("producer").toString(),
                        "ce_time", Instant.EPOCH.plus(micros, ChronoUnit.MICROS).toString(),
                        "content-type", "application/avro")
                .forEach((name, text) -> record.headers().add(name, text.getBytes(StandardCharsets.UTF_8)));
        producer.send(record).get();
    }

    @Override
    public void close() {
        producer.close();
    }

    /** Encodes in the Confluent wire format: a zero byte, the schema's id as four big-endian bytes, the Avro body. */
    private byte[] encode(String topic, GenericRecord event) throws IOException {
        Registered registered = schemas.get(topic);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        out.write(0);
        out.write(ByteBuffer.allocate(4).putInt(registered.id()).array());
        BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(out, null);
        new GenericDatumWriter<GenericRecord>(registered.schema()).write(event, encoder);
        encoder.flush();
        return out.toByteArray();
    }

    private static Registered lookUp(String subject) throws IOException, InterruptedException {
        URI address = URI.create(
                variable("SCHEMA_REGISTRY_URL", "http://127.0.0.1:8081") + "/subjects/" + subject + "/versions/latest");
        HttpRequest.Builder request = HttpRequest.newBuilder(address);
        String login = variable("SCHEMA_REGISTRY_USER_INFO", "");
        if (!login.isEmpty()) {
            request.header("Authorization", "Basic " + Base64.getEncoder().encodeToString(login.getBytes(StandardCharsets.UTF_8)));
        }
        HttpResponse<String> reply =
                HttpClient.newHttpClient().send(request.build(), HttpResponse.BodyHandlers.ofString());
        if (reply.statusCode() != 200) {
            throw new IOException(address + ": " + reply.body() + " (has `stepstream topics apply` run?)");
        }
        JsonNode found = new ObjectMapper().readTree(reply.body());
        return new Registered(found.get("id").asInt(), new Schema.Parser().parse(found.get("schema").asText()));
    }

    /** Returns the producer's settings, from the variables that every Stepstream process reads. */
    private static Map<String, Object> connection() {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", variable("KAFKA_BOOTSTRAP", "127.0.0.1:9092"));
        settings.put("security.protocol", variable("KAFKA_SECURITY_PROTOCOL", "PLAINTEXT"));
        if (variable("KAFKA_SECURITY_PROTOCOL", "").startsWith("SASL")) {
            settings.put("sasl.mechanism", variable("KAFKA_SASL_MECHANISM", "SCRAM-SHA-512"));
            settings.put("sasl.jaas.config", String.format(
                    "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"%s\" password=\"%s\";",
                    variable("KAFKA_SASL_USERNAME", ""), variable("KAFKA_SASL_PASSWORD", "")));
        }
        return settings;
    }

    private static String variable(String name, String otherwise) {
        String value = System.getenv("STEPSTREAM_" + name);
        return value == null || value.isEmpty() ? otherwise : value;
    }
}
