//! Publish steps and feedback by the protocol: Avro with the registry's schemas, keyed by trajectory, with CloudEvents
//! headers. Use one publisher per process.

use crate::records::Envelope;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use schema_registry_converter::async_impl::avro::AvroEncoder;
use schema_registry_converter::async_impl::schema_registry::SrSettings;
use schema_registry_converter::schema_registry_common::SubjectNameStrategy;
use serde::Serialize;
use std::env;
use std::error::Error;
use std::time::Duration;

pub struct Publisher {
    producer: FutureProducer,
    encoder: AvroEncoder,
}

impl Publisher {
    /// Read the addresses from the variables that every Stepstream process reads; the first event connects.
    pub fn new() -> Result<Self, Box<dyn Error>> {
        let producer = ClientConfig::new()
            .set("bootstrap.servers", variable("KAFKA_BOOTSTRAP", "127.0.0.1:9092"))
            // Kafka stores a retried request once, in order.
            .set("enable.idempotence", "true")
            .set("acks", "all")
            // Murmur2, like all Stepstream producers: a trajectory's steps and feedback share a partition.
            .set("partitioner", "murmur2_random")
            .set("compression.type", "lz4")
            .create()?;
        // The encoder looks up the newest schema of a topic, which `stepstream topics apply` registered. It registers
        // nothing, so that a producer cannot change the registry by accident.
        let encoder = AvroEncoder::new(SrSettings::new(variable("SCHEMA_REGISTRY_URL", "http://127.0.0.1:8081")));
        Ok(Self { producer, encoder })
    }

    /// Return when all in-sync replicas have the event. To send it again after an error, pass the same event:
    /// duplicates count once.
    pub async fn publish(&self, topic: &str, about: &Envelope, event: impl Serialize) -> Result<(), Box<dyn Error>> {
        let subject = SubjectNameStrategy::TopicNameStrategy(topic.into(), false);
        let value = self.encoder.encode_struct(event, &subject).await?;
        let kind = if topic == "steps" { "stepstream.Step" } else { "stepstream.Feedback" };
        let headers = [
            ("ce_specversion", "1.0"),
            ("ce_id", &about.event_id),
            ("ce_type", kind),
            ("ce_source", &about.producer),
            ("content-type", "application/avro"),
        ]
        .into_iter()
        .fold(OwnedHeaders::new(), |all, (key, text)| all.insert(Header { key, value: Some(text) }));
        let record = FutureRecord::to(topic).key(&about.trajectory_id).payload(&value).headers(headers);
        self.producer.send(record, Duration::from_secs(30)).await.map_err(|(error, _)| error)?;
        println!(
            r#"{{"topic": "{topic}", "trajectory_id": "{}", "event_id": "{}"}}"#,
            about.trajectory_id, about.event_id
        );
        Ok(())
    }
}

fn variable(name: &str, otherwise: &str) -> String {
    env::var(format!("STEPSTREAM_{name}")).ok().filter(|value| !value.is_empty()).unwrap_or_else(|| otherwise.into())
}
