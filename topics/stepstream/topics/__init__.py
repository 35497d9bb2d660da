"""The core of every producer and consumer: topic catalogue, typed events, codec, Kafka clients."""
