"""Bring a Kafka cluster and a schema registry to the declared state of the catalogue: `stepstream topics apply`."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import orjson
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)

from stepstream.config import SchemaRegistrySettings, Settings, masked
from stepstream.core.process import Fatal
from stepstream.schemas import schema_text
from stepstream.topics.access import check_created
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.client import admin_client, wait_for_kafka
from stepstream.topics.owned_topics import create_record, read_owned, write_owned
from stepstream.topics.registry_client import RegistryClient, RegistryRefused
from stepstream.topics.topic import Topic
from stepstream.topics.topic_plan import (
    OWNED_TOPICS,
    ExistingTopic,
    OwnedTopic,
    TopicPlan,
    check_foreign,
    check_partitions,
    plan_topics,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

COMPATIBILITY = "FULL_TRANSITIVE"
ALL = "all"
"""Instead of a name to adopt: every topic of the catalogue."""

_RETRY_S = 1.0
# Errors of a busy cluster, or while the controller moves. `KafkaError.retriable` is False for them.
_TRANSIENT = {
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_CONTROLLER,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
}


class RegistryNotReady(Fatal):
    """The registry did not answer within its deadline. The message names the address and the setting to check."""


class ForeignSubjects(Fatal):
    """Subjects of the catalogue's names hold schemas of others. The message names them and the remedy."""


@dataclass(frozen=True)
class Change:
    """One change: kind (`topic` or `subject`), name and action."""

    kind: str
    name: str
    action: str


@dataclass(frozen=True)
class Planned:
    """Planned action on a topic or subject, with its reason."""

    kind: Literal["topic", "subject"]
    name: str
    """Name in the cluster or registry."""
    action: Literal["create", "change", "leave", "refuse"]
    values: Mapping[str, str]
    """Configuration that would be set."""
    reason: str


def apply(settings: Settings, adopt: Collection[str] = ()) -> list[Change]:
    """Create or alter every topic and register every schema. A second call changes nothing.

    Args:
        settings: declare the topics.
        adopt: names of foreign topics to take over, or `all`.

    Raises:
        KafkaUnavailable, RegistryNotReady: no answer within the deadline.
        AccessDenied: the user may not create some topics, as those that a new release adds; the others were created.
        KafkaException: the cluster rejected a change, or stayed busy until the deadline.
        RegistryRefused: a schema is not compatible with a registered one.
        ForeignTopics, ForeignSubjects: others created a topic or subject of a catalogue's name; nothing was changed,
            or if others created it in the meantime, the missing topics were created.
        PartitionsDiffer: existing topics have another number of partitions than the setting; nothing was changed.
    """
    wait_for_kafka(settings.kafka)
    registry = _wait_for_registry(settings.schema_registry)
    admin = admin_client(settings.kafka)
    subjects = _plan_subjects(registry, settings.kafka.prefix)
    if foreign := [one.name for one in subjects if one.action == "refuse"]:
        raise ForeignSubjects(
            f"the registry's subjects {', '.join(foreign)} hold schemas of others; nothing was changed: set "
            "STEPSTREAM_KAFKA_PREFIX to names of your own"
        )
    changes = _with_retries(settings, lambda: _apply_topics(admin, registry, settings, adopt))
    missing = {one.name for one in subjects if one.action == "create"}
    prefix = settings.kafka.prefix
    return [*changes, *(_register(registry, t, prefix) for t in TOPICS.values() if prefix + t.subject in missing)]


def plan(settings: Settings, adopt: Collection[str] = ()) -> list[Planned]:
    """Return what `apply` would do, for each topic and subject; change nothing.

    Raises:
        KafkaUnavailable, RegistryNotReady, KafkaException: as `apply`.
        PartitionsDiffer: as `apply`.
    """
    wait_for_kafka(settings.kafka)
    registry = _wait_for_registry(settings.schema_registry)
    admin = admin_client(settings.kafka)
    prefix = settings.kafka.prefix
    plans, _ = _with_retries(settings, lambda: _plan(admin, registry, settings, adopt))
    topics = [Planned("topic", prefix + one.name, one.action, one.changes, one.reason) for one in plans]
    return [*topics, *_plan_subjects(registry, prefix)]


def _with_retries(settings: Settings, call: Callable[[], T]) -> T:
    """Call `call`; retry while the cluster is busy, until the deadline."""
    deadline = time.monotonic() + settings.kafka.deadline_s
    while True:
        try:
            return call()
        except KafkaException as error:
            if error.args[0].code() not in _TRANSIENT or time.monotonic() >= deadline:
                raise
            log.warning("Kafka: %s; retrying", error.args[0].str())
            time.sleep(_RETRY_S)


def _plan(
    admin: AdminClient, registry: RegistryClient, settings: Settings, adopt: Collection[str]
) -> tuple[list[TopicPlan], dict[str, ExistingTopic]]:
    """Return the plans of all topics, and those that exist.

    Raises:
        PartitionsDiffer: as `apply`.
    """
    existing = existing_topics(admin)
    owned = read_owned(settings.kafka) if OWNED_TOPICS in existing else {}
    adopted = set(TOPICS) if ALL in adopt else set(adopt)
    if OWNED_TOPICS not in existing and "broker" not in settings.stack.external:
        # The embedded broker's log is of a release before the record if the registry has the schemas of its topics.
        subjects = set(registry.subjects())
        adopted |= {name for name, topic in TOPICS.items() if settings.kafka.prefix + topic.subject in subjects}
    plans = plan_topics(settings, existing, owned, adopted)
    accepted = {one.name for one in plans if one.action in ("change", "leave")}
    check_partitions({name: existing[name].partitions for name in accepted}, settings)
    return plans, existing


def _apply_topics(
    admin: AdminClient, registry: RegistryClient, settings: Settings, adopt: Collection[str]
) -> list[Change]:
    """Plan and apply, in an order that leaves no new topic without an entry in the record if the process ends."""
    plans, existing = _plan(admin, registry, settings, adopt)
    check_foreign(plans, settings.kafka.prefix)
    if OWNED_TOPICS not in existing:
        create_record(admin, settings.kafka)
    new = {one.name: one for one in plans if one.action == "create"}
    write_owned(settings.kafka, {name: OwnedTopic("") for name in new})
    created = _create(admin, list(new), settings)
    changes = [Change("topic", settings.kafka.prefix + name, "created") for name in created]
    # Not every broker knows a new topic at once.
    described = _with_retries(settings, lambda: describe_topics(admin, new))
    entries = {name: OwnedTopic(described[name].topic_id, new[name].changes) for name in created}
    plans += _plan_raced({name: topic for name, topic in described.items() if name not in entries}, settings, adopt)
    check_foreign(plans, settings.kafka.prefix, "the missing topics were created")
    changes += [_alter(admin, one, settings.kafka.prefix) for one in plans if one.action == "change"]
    write_owned(settings.kafka, entries | {one.name: one.owned for one in plans if one.owned is not None})
    return changes


def _plan_raced(raced: Mapping[str, ExistingTopic], settings: Settings, adopt: Collection[str]) -> list[TopicPlan]:
    """Plan topics that another process created since they were found missing.

    They belong to Stepstream if they are as declared, as another `apply` creates them; else they are foreign.
    """
    adopted = raced if ALL in adopt else adopt
    plans = plan_topics(settings, raced, {name: OwnedTopic("") for name in raced}, adopted)
    return [one for one in plans if one.name in raced]


def _create(admin: AdminClient, names: list[str], settings: Settings) -> list[str]:
    """Create topics; return the names of those that this call created, and no other process before it.

    Raises:
        AccessDenied: the user may not create some.
    """
    if not names:
        return []
    topics = [
        NewTopic(
            name,
            TOPICS[name].partition_count(settings.topics),
            settings.kafka.replication,
            config=TOPICS[name].settings(settings),
        )
        for name in names
    ]
    created = admin.create_topics(topics, operation_timeout=30)
    check_created({settings.kafka.prefix + name: future for name, future in created.items()}, settings.kafka)
    return [name for name, future in created.items() if _is_created(future)]


def _alter(admin: AdminClient, topic: TopicPlan, prefix: str) -> Change:
    entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in topic.changes.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=entries)
    if entries:
        for alteration in admin.incremental_alter_configs([resource]).values():
            alteration.result()
    values = ", ".join(f"{key}={value}" for key, value in topic.changes.items())
    return Change("topic", prefix + topic.name, f"set {values}" if values else "taken over")


def existing_topics(admin: AdminClient, timeout_s: float = 30.0) -> dict[str, ExistingTopic]:
    """Return the catalogue's topics, and the record, that the cluster has, by the catalogue's name.

    Raises:
        KafkaException: the cluster does not describe them.
    """
    names = {*TOPICS, OWNED_TOPICS} & set(admin.list_topics(timeout=timeout_s).topics)
    return describe_topics(admin, names, timeout_s)


def describe_topics(admin: AdminClient, names: Collection[str], timeout_s: float = 30.0) -> dict[str, ExistingTopic]:
    """Return ids, partitions and configuration of existing topics.

    Raises:
        KafkaException: the cluster does not describe one.
    """
    if not names:
        return {}
    described = admin.describe_topics(TopicCollection(list(names)), request_timeout=timeout_s)
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    configured = admin.describe_configs(resources, request_timeout=timeout_s)
    configs = {resource.name: future.result() for resource, future in configured.items()}
    return {name: _existing(future.result(), configs[name]) for name, future in described.items()}


def _existing(topic: Any, config: Mapping[str, ConfigEntry]) -> ExistingTopic:
    return ExistingTopic(
        str(topic.topic_id),
        len(topic.partitions),
        min(len(partition.replicas) for partition in topic.partitions),
        {key: entry.value or "" for key, entry in config.items()},
        frozenset(k for k, entry in config.items() if _is_own(entry)),
    )


def _is_own(entry: ConfigEntry) -> bool:
    """Return True if a value is set on the topic itself, and not a default of the cluster."""
    return ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG


def _is_created(future: object) -> bool:
    """Return True if this call created the topic; False if another process was first."""
    try:
        future.result()  # type: ignore[attr-defined]
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise
    return True


def _plan_subjects(client: RegistryClient, prefix: str) -> list[Planned]:
    existing = set(client.subjects())
    return [_plan_subject(client, topic, prefix, existing) for topic in TOPICS.values()]


def _plan_subject(client: RegistryClient, topic: Topic, prefix: str, existing: Collection[str]) -> Planned:
    subject = prefix + topic.subject
    if subject not in existing:
        return Planned("subject", subject, "create", {}, "is not in the registry")
    if is_registered(client, topic, prefix):
        return Planned("subject", subject, "leave", {}, "")
    if _full_name(client.latest(subject)) != _full_name(schema_text(topic.schema)):
        return Planned("subject", subject, "refuse", {}, "holds a schema of others")
    return Planned("subject", subject, "create", {}, "lacks this version's schema")


def _full_name(schema: str) -> str:
    """Return the full name of an Avro record; empty: it is none."""
    parsed = orjson.loads(schema)
    return f"{parsed.get('namespace', '')}.{parsed.get('name', '')}" if isinstance(parsed, dict) else ""


def _register(client: RegistryClient, topic: Topic, prefix: str) -> Change:
    subject = prefix + topic.subject
    # Compatibility first: a schema that was registered under a laxer rule would stay.
    client.set_compatibility(subject, COMPATIBILITY)
    return Change("subject", subject, f"registered schema {client.register(subject, schema_text(topic.schema))}")


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
