"""Bring a Kafka cluster and a schema registry to the declared state of the catalogue: `stepstream topics apply`."""

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from stepstream.config import SchemaRegistrySettings, Settings, TopicsSettings, masked
from stepstream.core.process import Fatal
from stepstream.schemas import schema_text
from stepstream.topics.catalogue import TOPICS, Topic
from stepstream.topics.client import admin_client, wait_for_kafka
from stepstream.topics.registry_client import RegistryClient, RegistryRefused

log = logging.getLogger(__name__)

COMPATIBILITY = "FULL_TRANSITIVE"

_RETRY_S = 1.0
# Errors of a busy cluster, or while the controller moves. `KafkaError.retriable` is False for them.
_TRANSIENT = {
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_CONTROLLER,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.BROKER_NOT_AVAILABLE,
}


class RegistryNotReady(Fatal):
    """The registry did not answer within its deadline. The message names the address and the setting to check."""


class PartitionsDiffer(Fatal):
    """Existing topics have another number of partitions than `topics.partitions`."""

    def __init__(self, fact: str, remedy: str) -> None:
        super().__init__(f"{fact}: {remedy}")
        self.fact, self.remedy = fact, remedy


@dataclass(frozen=True)
class Change:
    """One change: kind (`topic` or `subject`), name and action."""

    kind: str
    name: str
    action: str


def apply(settings: Settings) -> list[Change]:
    """Create or alter every topic and register every schema. A second call changes nothing.

    Raises:
        KafkaUnavailable, RegistryNotReady: no answer within the deadline.
        KafkaException: the cluster rejected a change, or stayed busy until the deadline.
        RegistryRefused: a schema is not compatible with a registered one.
        PartitionsDiffer: existing topics have another number of partitions than the setting; nothing was changed.
    """
    wait_for_kafka(settings.kafka)
    admin = admin_client(settings.kafka)
    return [*_apply_topics_with_retries(admin, settings), *_apply_subjects(settings)]


def _apply_topics_with_retries(admin: AdminClient, settings: Settings) -> list[Change]:
    """Call `_apply_topics`; retry while the cluster is busy, until the deadline."""
    deadline = time.monotonic() + settings.kafka.deadline_s
    while True:
        try:
            return _apply_topics(admin, settings)
        except KafkaException as error:
            if error.args[0].code() not in _TRANSIENT or time.monotonic() >= deadline:
                raise
            log.warning("Kafka: %s; retrying", error.args[0].str())
            time.sleep(_RETRY_S)


def _apply_topics(admin: AdminClient, settings: Settings) -> list[Change]:
    existing = admin.list_topics(timeout=30).topics
    check_partitions({name: len(topic.partitions) for name, topic in existing.items()}, settings.topics)
    changes = []
    missing = [topic for topic in TOPICS.values() if topic.name not in existing]
    if missing:
        replication = settings.kafka.replication
        created = admin.create_topics(
            [
                NewTopic(
                    topic.name,
                    topic.partition_count(settings.topics),
                    replication,
                    config=topic.settings(settings.topics),
                )
                for topic in missing
            ],
            operation_timeout=30,
        )
        for name, future in created.items():
            if _is_created(future):
                changes.append(Change("topic", settings.kafka.prefix + name, "created"))
    known = [topic.name for topic in TOPICS.values() if topic.name in existing]
    return changes + _alter_configs(admin, known, settings)


def check_partitions(existing: Mapping[str, int], configured: TopicsSettings) -> None:
    """Check that the existing topics whose keys have state have the configured number of partitions.

    With more partitions, half of the keys or more would move away from their state, and a trajectory would count twice.
    A job also needs the same number in all its inputs.

    Args:
        existing: number of partitions, by topic of the cluster.
        configured: the setting.

    Raises:
        PartitionsDiffer: a topic has another number.
    """
    counts = {name: existing[name] for name, topic in TOPICS.items() if topic.partitions is None and name in existing}
    wrong = {name: count for name, count in counts.items() if count != configured.partitions}
    if not wrong:
        return
    fact = (
        f"`topics.partitions` is {configured.partitions}, but "
        + ", ".join(f"{name} has {count}" for name, count in sorted(wrong.items()))
        + ", and other partitions would part keys from their state"
    )
    if len(set(counts.values())) == 1:
        [count] = set(counts.values())
        remedy = f"set STEPSTREAM_TOPICS_PARTITIONS={count}, or copy the log with `stepstream topics copy`"
        raise PartitionsDiffer(fact, f"{remedy}, see docs/operations.md")
    raise PartitionsDiffer(fact, "create the topics anew with one number of partitions, see docs/operations.md")


def _alter_configs(admin: AdminClient, names: list[str], settings: Settings) -> list[Change]:
    changes = []
    for name, missing in config_differences(admin, names, settings.topics).items():
        entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in missing.items()]
        altered = admin.incremental_alter_configs(
            [ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)]
        )
        for alteration in altered.values():
            alteration.result()
        values = ", ".join(f"{key}={value}" for key, value in missing.items())
        changes.append(Change("topic", settings.kafka.prefix + name, f"set {values}"))
    return changes


def config_differences(
    admin: AdminClient, names: Collection[str], configured: TopicsSettings, timeout_s: float = 30.0
) -> dict[str, dict[str, str]]:
    """Return the declared values that the cluster does not have, by topic and setting.

    Raises:
        KafkaException: the cluster does not report its configuration.
    """
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    differences = {}
    for resource, future in (admin.describe_configs(resources, request_timeout=timeout_s) if resources else {}).items():
        current = future.result()
        declared = TOPICS[resource.name].settings(configured)
        if missing := {key: value for key, value in declared.items() if current[key].value != value}:
            differences[resource.name] = missing
    return differences


def _is_created(future: object) -> bool:
    """Return True if this call created the topic; False if another process was first."""
    try:
        future.result()  # type: ignore[attr-defined]
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise
    return True


def _apply_subjects(settings: Settings) -> list[Change]:
    client = _wait_for_registry(settings.schema_registry)
    changes = [_apply_subject(client, topic, settings.kafka.prefix) for topic in TOPICS.values()]
    return [change for change in changes if change is not None]


def _apply_subject(client: RegistryClient, topic: Topic, prefix: str) -> Change | None:
    schema, subject = schema_text(topic.schema), prefix + topic.subject
    if is_registered(client, topic, prefix):
        return None
    # Compatibility first: a schema that was registered under a laxer rule would stay.
    client.set_compatibility(subject, COMPATIBILITY)
    return Change("subject", subject, f"registered schema {client.register(subject, schema)}")


def is_registered(client: RegistryClient, topic: Topic, prefix: str) -> bool:
    """Return True if the registry has the schema that this version of the code writes to a topic."""
    try:
        client.look_up(prefix + topic.subject, schema_text(topic.schema))
    except RegistryRefused as error:
        if error.status == 404:
            return False
        raise
    return True


def _wait_for_registry(registry: SchemaRegistrySettings) -> RegistryClient:
    """Block until the registry answers, and return a client of it."""
    client = RegistryClient(registry)
    deadline = time.monotonic() + registry.deadline_s
    while True:
        try:
            client.subjects()
        except Exception as error:  # connection errors of any kind, and malformed answers
            if time.monotonic() >= deadline:
                raise RegistryNotReady(
                    f"no schema registry answers at {masked(registry.url)} after {registry.deadline_s:g} s "
                    f"({error!r}): start it, or set STEPSTREAM_SCHEMA_REGISTRY_URL"
                ) from None
            time.sleep(0.2)
        else:
            return client
