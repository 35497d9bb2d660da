//! A support agent with two tools. Its answers are scripted, so that the example runs without a model; replace
//! `call_model` with a call to yours.

use crate::records::{Message, ToolCall};
use serde_json::{Value, json};
use std::time::Instant;

/// One step: the new messages of its prompt, and the agent's response.
pub struct Round {
    pub index: i32,
    pub shared_messages: i32,
    pub messages: Vec<Message>,
    pub response: Message,
    pub duration_ms: f32,
}

pub struct Agent {
    conversation: Vec<Message>,
    /// Messages that previous steps already carry; a step carries only new ones.
    shared: usize,
    index: i32,
}

impl Agent {
    pub fn new(request: &str) -> Self {
        let system = Message::new("system", "You help customers with their orders.");
        Self { conversation: vec![system, Message::new("user", request)], shared: 0, index: 0 }
    }

    /// Run the next step; the last one calls no tools.
    pub fn step(&mut self) -> Round {
        let started = Instant::now();
        let messages = self.conversation[self.shared..].to_vec();
        let mut response = call_model(self.index);
        let duration_ms = started.elapsed().as_secs_f32() * 1000.0;
        for call in &mut response.tool_calls {
            run(call);
        }
        let round = Round {
            index: self.index,
            shared_messages: self.shared as i32,
            messages,
            response: response.clone(),
            duration_ms,
        };
        self.conversation.push(response.clone());
        self.shared = self.conversation.len();
        for call in response.tool_calls {
            let mut answer = Message::new("tool", call.result.as_deref().unwrap_or_default());
            answer.tool_call_id = Some(call.call_id);
            self.conversation.push(answer);
        }
        self.index += 1;
        round
    }
}

fn call_model(turn: i32) -> Message {
    let call = |name: &str, arguments: Value| {
        let mut message = Message::new("assistant", "");
        message.tool_calls.push(ToolCall {
            call_id: format!("call_{turn}"),
            name: name.into(),
            arguments: arguments.to_string(),
            result: None,
            error: None,
            duration_ms: None,
        });
        message
    };
    match turn {
        0 => call("get_order", json!({"order": "A17"})),
        1 => call("refund", json!({"order": "A17", "amount": 49.9})),
        _ => Message::new("assistant", "I am sorry about the kettle. Your 49.90 are on their way back to you."),
    }
}

fn run(call: &mut ToolCall) {
    let started = Instant::now();
    match serde_json::from_str::<Value>(&call.arguments) {
        Ok(arguments) => {
            let result = match call.name.as_str() {
                "get_order" => json!({"order": arguments["order"], "item": "kettle", "state": "arrived broken"}),
                _ => json!({"order": arguments["order"], "refunded": arguments["amount"]}),
            };
            call.result = Some(result.to_string());
        }
        // Rewards and statistics count errors by class; the error's text goes into the result.
        Err(fault) => (call.error, call.result) = (Some("BadArguments".into()), Some(fault.to_string())),
    }
    call.duration_ms = Some(started.elapsed().as_secs_f32() * 1000.0);
}
