package example;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;

/**
 * A support agent with two tools. Its answers are scripted, so that the example runs without a model; replace
 * {@link #callModel} with a call to yours.
 */
final class Agent {
    record ToolCall(String callId, String name, String arguments, String result, Float durationMs) {}

    record Message(String role, String content, List<ToolCall> toolCalls, String toolCallId) {}

    /** One step: the new messages of its prompt, and the agent's response. */
    record Round(int index, int sharedMessages, List<Message> messages, Message response, float durationMs) {}

    /** Receives each step when it completes. */
    interface OnStep {
        void done(Round round) throws Exception;
    }

    private static final ObjectMapper JSON = new ObjectMapper();

    private static final Map<String, Function<Map<String, Object>, Map<String, Object>>> TOOLS = Map.of(
            "get_order", in -> Map.of("order", in.get("order"), "item", "kettle", "paid", 49.9, "state", "arrived broken"),
            "refund", in -> Map.of("order", in.get("order"), "refunded", in.get("amount")));

    private static final List<Message> ANSWERS = List.of(
            calls("call_0", "get_order", "{\"order\": \"A17\"}"),
            calls("call_1", "refund", "{\"order\": \"A17\", \"amount\": 49.9}"),
            new Message("assistant", "I am sorry about the kettle. Your 49.90 are on their way back to you.", List.of(), null));

    private Agent() {}

    /** Handles one request; returns the index of the last step. */
    static int solve(String request, OnStep onStep) throws Exception {
        List<Message> conversation = new ArrayList<>();
        conversation.add(new Message("system", "You help customers with their orders.", List.of(), null));
        conversation.add(new Message("user", request, List.of(), null));
        int shared = 0; // Messages that previous steps already carry; a step carries only new ones.
        for (int index = 0; ; index++) {
            long started = System.nanoTime();
            List<Message> prompt = List.copyOf(conversation.subList(shared, conversation.size()));
            Message answer = callModel(index);
            float took = (System.nanoTime() - started) / 1e6f;
            List<ToolCall> done = new ArrayList<>();
            for (ToolCall call : answer.toolCalls()) {
                done.add(callTool(call));
            }
            Message response = new Message("assistant", answer.content(), done, null);
            conversation.add(response);
            int before = shared;
            shared = conversation.size();
            done.forEach(call -> conversation.add(new Message("tool", call.result(), List.of(), call.callId())));
            onStep.done(new Round(index, before, prompt, response, took));
            if (done.isEmpty()) {
                return index;
            }
        }
    }

    private static Message callModel(int turn) {
        return ANSWERS.get(turn);
    }

    private static ToolCall callTool(ToolCall call) throws IOException {
        long started = System.nanoTime();
        Map<String, Object> arguments = JSON.readValue(call.arguments(), new TypeReference<>() {});
        String result = JSON.writeValueAsString(TOOLS.get(call.name()).apply(arguments));
        return new ToolCall(call.callId(), call.name(), call.arguments(), result, (System.nanoTime() - started) / 1e6f);
    }

    private static Message calls(String id, String tool, String arguments) {
        return new Message("assistant", "", List.of(new ToolCall(id, tool, arguments, null, null)), null);
    }
}
