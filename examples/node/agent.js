// A support agent with two tools. Its answers are scripted, so that the example runs without a model; replace
// `callModel` with a call to yours.

const ORDERS = { A17: { item: "kettle", paid: 49.9, state: "arrived broken" } };

const TOOLS = {
  get_order: ({ order }) => ORDERS[order] ?? { error: "no such order" },
  refund: ({ order, amount }) => ({ order, refunded: amount }),
};

const ANSWERS = [
  { tool: "get_order", arguments: { order: "A17" } },
  { tool: "refund", arguments: { order: "A17", amount: 49.9 } },
  { content: "I am sorry about the kettle. Your 49.90 are on their way back to you." },
];

async function callModel(messages) {
  const turn = messages.filter((message) => message.role === "assistant").length;
  const answer = ANSWERS[turn];
  if (answer.content) return { role: "assistant", content: answer.content };
  const call = { call_id: `call_${turn}`, name: answer.tool, arguments: JSON.stringify(answer.arguments) };
  return { role: "assistant", content: "", tool_calls: [call] };
}

async function callTool(call) {
  const started = performance.now();
  const result = TOOLS[call.name](JSON.parse(call.arguments));
  return {
    ...call,
    result: JSON.stringify(result),
    error: result.error ? "NotFound" : null,
    duration_ms: performance.now() - started,
  };
}

// Handle one request; call `onStep` after each round with the round's new content.
export async function solve(request, onStep) {
  const messages = [
    { role: "system", content: "You help customers with their orders." },
    { role: "user", content: request },
  ];
  let shared = 0; // Messages that previous steps already carry; a step carries only new ones.
  for (let index = 0; ; index += 1) {
    const started = performance.now();
    const prompt = messages.slice(shared);
    const sharedBefore = shared;
    const answer = await callModel(messages);
    const duration = performance.now() - started;
    const calls = await Promise.all((answer.tool_calls ?? []).map(callTool));
    const response = { ...answer, tool_calls: calls };
    messages.push(response);
    shared = messages.length;
    for (const call of calls) {
      messages.push({ role: "tool", content: call.result, tool_call_id: call.call_id });
    }
    await onStep({
      step_index: index,
      prompt_shared_messages: sharedBefore,
      messages: prompt,
      response,
      finish_reason: calls.length ? "tool_calls" : "stop",
      duration_ms: duration,
    });
    if (!calls.length) return { answer: response.content, lastStep: index };
  }
}
