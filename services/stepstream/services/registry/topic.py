"""Create or check the schemas topic: one partition, compacted."""

import logging
import time

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from stepstream.config import KafkaSettings
from stepstream.core.process import Fatal
from stepstream.services.registry.records import TOPIC
from stepstream.topics.client import KafkaUnavailable, admin_client, wait_for_kafka

log = logging.getLogger(__name__)


def ensure_topic(kafka: KafkaSettings) -> None:
    """Wait for the broker, create the topic if it is missing, and check that its schemas cannot expire.

    Raises:
        KafkaUnavailable: no broker within `kafka.deadline_s`.
        Fatal: the topic is not compacted, or has several partitions.
    """
    deadline = time.monotonic() + kafka.deadline_s
    wait_for_kafka(kafka)
    admin = admin_client(kafka)
    while True:
        try:
            _create(admin, kafka)
            _check(admin)
        except KafkaException as error:
            # A cluster that is starting has not elected its leaders yet, or has too few brokers for the replicas.
            if time.monotonic() >= deadline:
                raise KafkaUnavailable(f"topic {TOPIC} cannot be created or checked: {error.args[0].str()}") from None
            log.warning("waiting for topic %s: %s", TOPIC, error.args[0].str())
            time.sleep(0.5)
        else:
            return


def _create(admin: AdminClient, kafka: KafkaSettings) -> None:
    config = {"cleanup.policy": "compact", "min.insync.replicas": str(kafka.in_sync_replicas)}
    topic = NewTopic(TOPIC, 1, kafka.replication, config=config)
    try:
        admin.create_topics([topic], operation_timeout=10)[TOPIC].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    else:
        log.info("created topic %s", TOPIC)


def _check(admin: AdminClient) -> None:
    partitions = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
    if len(partitions) > 1:
        raise Fatal(f"topic {TOPIC} has {len(partitions)} partitions: the registry needs one, which orders its writes")
    if not partitions:
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
    resource = ConfigResource(ResourceType.TOPIC, TOPIC)
    config = admin.describe_configs([resource])[resource].result()
    policy = config["cleanup.policy"].value
    if policy != "compact":
        raise Fatal(
            f"topic {TOPIC} has cleanup.policy={policy}, so schemas would expire: set it to 'compact' "
            f"(kafka-configs --alter --topic {TOPIC} --add-config cleanup.policy=compact)"
        )
