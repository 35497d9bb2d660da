// Run the agent once and publish its trajectory: each step when it completes, then the outcome.
import { solve } from "./agent.js";
import { connectKafka, connectRegistry } from "./connection.js";
import { Publisher } from "./publisher.js";
import { v7 as uuidv7 } from "uuid";

const PRODUCER = "node-example/0.1.0";

const publisher = new Publisher(connectKafka("node-example"), connectRegistry(), {
  producer: PRODUCER,
  tenant: "default",
  // Consent of the person behind the request: `train` (learn from it), `analyse` (statistics only) or `none`.
  consent: "train",
});
const trajectory_id = uuidv7();
const print = (event) => console.log(JSON.stringify(event));

await publisher.connect();
try {
  const { lastStep } = await solve("My kettle from order A17 arrived broken.", async (step) => {
    print(
      await publisher.step({
        ...step,
        trajectory_id,
        task_id: "refund-A17",
        agent: "support-agent",
        environment: "support-desk",
        harness_version: "support@1",
        model: "scripted",
        // Only the inference server knows the tokens and their log-probabilities. Agents that call Stepstream's gateway
        // get fidelity `token`, which a learner can train on.
        fidelity: "text",
        sampling: { temperature: 1.0, top_p: 1.0 },
      }),
    );
  });
  // The outcome ends the trajectory. With the index of its last step, `label` waits for late steps.
  print(
    await publisher.feedback({
      trajectory_id,
      name: "outcome",
      value: 1,
      source: "environment",
      end: "terminated",
      last_step_index: lastStep,
    }),
  );
} finally {
  await publisher.disconnect();
}
