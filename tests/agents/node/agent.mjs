// Run an agent of the Vercel AI SDK: `node agent.mjs chat|responses generateText|streamText`; reads GATEWAY_… .
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [api, call] = process.argv.slice(2);
const openai = createOpenAI({
  baseURL: process.env.GATEWAY_URL,
  apiKey: process.env.GATEWAY_KEY,
  headers: JSON.parse(process.env.GATEWAY_HEADERS),
});
const inputSchema = z.object({ order: z.number().int() });
const asked = {
  model: openai[api]("demo"),
  system: "Help with orders.",
  prompt: process.env.QUESTION,
  stopWhen: stepCountIs(10),
  tools: {
    lookup: tool({
      description: "Tells the state of an order.",
      inputSchema,
      execute: async ({ order }) => `Order ${order} is late.`,
    }),
    refund: tool({
      description: "Refunds an order.",
      inputSchema,
      execute: async ({ order }) => `Order ${order} is refunded.`,
    }),
  },
};

if (call === "streamText") {
  const result = streamText({
    ...asked,
    onError: ({ error }) => {
      throw error;
    },
  });
  let text = "";
  for await (const part of result.textStream) text += part;
  console.log(text);
} else {
  console.log((await generateText(asked)).text);
}
