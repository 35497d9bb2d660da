package example;

import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.generic.GenericRecordBuilder;

/** Converts the agent's messages to records of the registry's schema. */
final class Avro {
    private Avro() {}

    /** Returns a symbol of the enum in a field of the schema. */
    static GenericData.EnumSymbol symbol(Schema schema, String field, String word) {
        return new GenericData.EnumSymbol(schema.getField(field).schema(), word);
    }

    static GenericRecord message(Schema step, Agent.Message message) {
        Schema schema = step.getField("response").schema();
        return new GenericRecordBuilder(schema)
                .set("role", message.role())
                .set("content", message.content())
                .set("tool_calls", message.toolCalls().stream().map(call -> toolCall(schema, call)).toList())
                .set("tool_call_id", message.toolCallId())
                .build();
    }

    private static GenericRecord toolCall(Schema message, Agent.ToolCall call) {
        return new GenericRecordBuilder(message.getField("tool_calls").schema().getElementType())
                .set("call_id", call.callId())
                .set("name", call.name())
                .set("arguments", call.arguments())
                .set("result", call.result())
                .set("duration_ms", call.durationMs())
                .build();
    }
}
