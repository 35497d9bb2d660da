//! Handle one request and publish the trajectory: each step when it completes, then the outcome. Print topic,
//! trajectory and id of each acknowledged event, one line of JSON each.

mod agent;
mod publisher;
mod records;

use agent::Agent;
use publisher::Publisher;
use records::{End, Envelope, Feedback, Fidelity, Sampling, Step};
use std::error::Error;
use uuid::Uuid;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let publisher = Publisher::new()?;
    let trajectory = Uuid::now_v7().to_string();
    let mut agent = Agent::new("My kettle from order A17 arrived broken.");
    let last = loop {
        let round = agent.step();
        let over = round.response.tool_calls.is_empty();
        let envelope = Envelope::new(&trajectory);
        let step = Step {
            envelope: envelope.clone(),
            step_index: round.index,
            task_id: "refund-A17".into(),
            agent: "support-agent".into(),
            environment: "support-desk".into(),
            harness_version: "support@1".into(),
            model: "scripted".into(),
            // Only the inference server knows the tokens and their log-probabilities. Agents that call Stepstream's
            // gateway get fidelity `token`, which a learner can train on.
            fidelity: Fidelity::Text,
            prompt_shared_messages: round.shared_messages,
            messages: round.messages,
            response: round.response,
            sampling: Sampling { temperature: 1.0, top_p: 1.0 },
            finish_reason: if over { "stop" } else { "tool_calls" }.into(),
            duration_ms: Some(round.duration_ms),
        };
        publisher.publish("steps", &envelope, step).await?;
        if over {
            break round.index;
        }
    };
    // The outcome ends the trajectory. With the index of its last step, `label` waits for late steps.
    let envelope = Envelope::new(&trajectory);
    let outcome = Feedback {
        envelope: envelope.clone(),
        name: "outcome".into(),
        value: Some(1.0),
        source: "environment".into(),
        end: End::Terminated,
        last_step_index: Some(last),
    };
    publisher.publish("feedback", &envelope, outcome).await
}
