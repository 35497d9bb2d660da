package example;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.List;

import com.fasterxml.uuid.Generators;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.generic.GenericRecordBuilder;

/**
 * Handles one request and publishes the trajectory: each step when it completes, then the outcome. Prints topic,
 * trajectory and id of each acknowledged event, one line of JSON each.
 */
public final class Main {
    private static final String PRODUCER = "java-example/0.1.0";

    private Main() {}

    public static void main(String[] arguments) throws Exception {
        try (Publisher publisher = new Publisher()) {
            String trajectory = Generators.timeBasedEpochGenerator().generate().toString();
            Schema steps = publisher.schema("steps");
            int last = Agent.solve(
                    "My kettle from order A17 arrived broken.",
                    round -> tell(publisher, "steps", step(steps, trajectory, round)));
            // The outcome ends the trajectory. With the index of its last step, `label` waits for late steps.
            Schema feedback = publisher.schema("feedback");
            tell(publisher, "feedback", envelope(feedback, trajectory)
                    .set("name", "outcome")
                    .set("value", 1.0)
                    .set("source", "environment")
                    .set("end", Avro.symbol(feedback, "end", "terminated"))
                    .set("last_step_index", last)
                    .build());
        }
    }

    /** Builds the fields that all events have; omitted fields take the schema's defaults. */
    private static GenericRecordBuilder envelope(Schema schema, String trajectory) {
        return new GenericRecordBuilder(schema)
                // Identity of the event: a retry sends the same one.
                .set("event_id", Generators.timeBasedEpochGenerator().generate().toString())
                .set("occurred_at_us", ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now()))
                .set("producer", PRODUCER)
                .set("tenant", "default")
                // Consent of the person behind the request: train (learn from it), analyse (statistics only) or none.
                .set("consent", Avro.symbol(schema, "consent", "train"))
                .set("trajectory_id", trajectory);
    }

    private static GenericRecord step(Schema schema, String trajectory, Agent.Round round) {
        List<GenericRecord> prompt =
                round.messages().stream().map(message -> Avro.message(schema, message)).toList();
        return envelope(schema, trajectory)
                .set("step_index", round.index())
                .set("task_id", "refund-A17")
                .set("agent", "support-agent")
                .set("environment", "support-desk")
                .set("harness_version", "support@1")
                .set("model", "scripted")
                // Only the inference server knows the tokens and their log-probabilities. Agents that call Stepstream's
                // gateway get fidelity `token`, which a learner can train on.
                .set("fidelity", Avro.symbol(schema, "fidelity", "text"))
                .set("prompt_shared_messages", round.sharedMessages())
                .set("messages", prompt)
                .set("response", Avro.message(schema, round.response()))
                .set("sampling", new GenericRecordBuilder(schema.getField("sampling").schema()).build())
                .set("finish_reason", round.response().toolCalls().isEmpty() ? "stop" : "tool_calls")
                .set("duration_ms", round.durationMs())
                .build();
    }

    private static void tell(Publisher publisher, String topic, GenericRecord event) throws Exception {
        publisher.publish(topic, event);
        System.out.printf(
                "{\"topic\": \"%s\", \"trajectory_id\": \"%s\", \"event_id\": \"%s\"}%n",
                topic, event.get("trajectory_id"), event.get("event_id"));
    }
}
