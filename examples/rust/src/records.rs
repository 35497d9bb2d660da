//! Event types with the fields that this agent sets; omitted fields take the schema's defaults.

use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};
use uuid::Uuid;

const PRODUCER: &str = "rust-example/0.1.0";

#[derive(Clone, Serialize)]
pub struct Message {
    pub role: String,
    pub content: String,
    pub tool_calls: Vec<ToolCall>,
    pub tool_call_id: Option<String>,
    pub name: Option<String>,
    pub reasoning: Option<String>,
}

impl Message {
    pub fn new(role: &str, content: &str) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            tool_calls: vec![],
            tool_call_id: None,
            name: None,
            reasoning: None,
        }
    }
}

#[derive(Clone, Serialize)]
pub struct ToolCall {
    pub call_id: String,
    pub name: String,
    pub arguments: String,
    pub result: Option<String>,
    pub error: Option<String>,
    pub duration_ms: Option<f32>,
}

/// Fields that all events have.
#[derive(Clone, Serialize)]
pub struct Envelope {
    pub event_id: String,
    pub occurred_at_us: i64,
    pub producer: String,
    pub tenant: String,
    pub consent: Consent,
    pub trajectory_id: String,
}

impl Envelope {
    /// Build the fields of a new event. A retry sends the same `event_id`.
    pub fn new(trajectory_id: &str) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
        Self {
            event_id: Uuid::now_v7().to_string(),
            occurred_at_us: since_epoch.as_micros() as i64,
            producer: PRODUCER.into(),
            tenant: "default".into(),
            consent: Consent::Train,
            trajectory_id: trajectory_id.into(),
        }
    }
}

/// Consent of the person behind the request.
#[derive(Clone, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(dead_code)]
pub enum Consent {
    /// Learn from the event.
    Train,
    /// Statistics only.
    Analyse,
    /// Neither training nor statistics.
    None,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fidelity {
    Text,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    Terminated,
}

#[derive(Serialize)]
pub struct Sampling {
    pub temperature: f64,
    pub top_p: f64,
}

#[derive(Serialize)]
pub struct Step {
    #[serde(flatten)]
    pub envelope: Envelope,
    pub step_index: i32,
    pub task_id: String,
    pub agent: String,
    pub environment: String,
    pub harness_version: String,
    pub model: String,
    pub fidelity: Fidelity,
    pub prompt_shared_messages: i32,
    pub messages: Vec<Message>,
    pub response: Message,
    pub sampling: Sampling,
    pub finish_reason: String,
    pub duration_ms: Option<f32>,
}

#[derive(Serialize)]
pub struct Feedback {
    #[serde(flatten)]
    pub envelope: Envelope,
    pub name: String,
    pub value: Option<f64>,
    pub source: String,
    pub end: End,
    pub last_step_index: Option<i32>,
}
