"""Put `kafka.prefix` before names on the way to the cluster, and remove it on the way back.

It is part of the names of topics, consumer groups and transactional ids. The rest of the code uses the catalogue's
names, and so do the messages of these clients. Methods that are not here, and that take or return such names, raise:
add a method here before you use it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import confluent_kafka as kafka
from confluent_kafka import KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

_Client = TypeVar("_Client", bound=type)
OnPartitions = Callable[[kafka.Consumer, list[TopicPartition]], None]
WITHOUT_NAMES = frozenset(
    {
        *("close", "cluster_id", "describe_cluster", "flush", "memberid", "purge", "set_sasl_credentials"),
        *("init_transactions", "begin_transaction", "commit_transaction", "abort_transaction"),
        *("consumer_group_metadata", "unassign", "unsubscribe"),
        *("alter_user_scram_credentials", "describe_user_scram_credentials"),
    }
)
"""Methods of all clients that neither take nor return the name of a topic or group."""


class Names:
    """The catalogue's names and those of the cluster."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def full(self, name: str) -> str:
        """Return the name in the cluster."""
        return self._prefix + name

    def full_partitions(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions under their names in the cluster, with their offsets."""
        return [_renamed(one, self.full(one.topic)) for one in partitions]

    def short(self, name: str) -> str:
        """Return the catalogue's name."""
        return name.removeprefix(self._prefix)

    def short_partitions(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions under the catalogue's names, with their offsets.

        Raises:
            KafkaException: the error of a partition.
        """
        return [_renamed(one, self.short(one.topic)) for one in partitions]

    def shorten(self, message: Message) -> Message:
        """Give a message the catalogue's name of its topic."""
        topic = message.topic()
        if topic is not None:
            message.set_topic(self.short(topic))  # type: ignore[attr-defined]
        return message

    def short_topics(self, metadata: Any) -> Any:
        """Keep only the topics with the prefix in the metadata of a cluster, under the catalogue's names."""
        found = {}
        for name, topic in metadata.topics.items():
            if name.startswith(self._prefix):
                topic.topic = self.short(name)
                found[topic.topic] = topic
        metadata.topics = found
        return metadata

    def config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a client's configuration with the names of its group and of its transactions in the cluster."""
        names = ("group.id", "transactional.id")
        return {key: self.full(value) if key in names else value for key, value in config.items()}


def _renamed(partition: TopicPartition, name: str) -> TopicPartition:
    if partition.error is not None:
        raise KafkaException(partition.error)
    return TopicPartition(name, partition.partition, partition.offset, partition.metadata or "")


def _refusing(client: _Client) -> _Client:
    """Let the methods that a class inherits from confluent-kafka's raise, except those without names."""
    base = client.__mro__[1]
    for name in dir(base):
        if not name.startswith("_") and name not in vars(client) and name not in WITHOUT_NAMES:
            setattr(client, name, _refuse(f"{base.__name__}.{name}"))
    return client


def _refuse(method: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{method} would use names without `kafka.prefix`: add it to {__name__}")

    return refuse


@_refusing
class PrefixedConsumer(kafka.Consumer):
    """A consumer in the terms of the catalogue."""

    def __init__(self, config: Mapping[str, Any], prefix: str) -> None:
        self._names = Names(prefix)
        super().__init__(self._names.config(config))

    def subscribe(self, topics: list[str], **callbacks: OnPartitions) -> None:  # type: ignore[override]
        """As `Consumer.subscribe`; the callbacks get the catalogue's names."""
        short = self._names.short_partitions
        wrapped = {
            name: lambda _, partitions, call=callback: call(self, short(partitions))
            for name, callback in callbacks.items()
        }
        super().subscribe([self._names.full(topic) for topic in topics], **wrapped)

    def assign(self, partitions: list[TopicPartition]) -> None:
        """As `Consumer.assign`."""
        super().assign(self._names.full_partitions(partitions))

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """As `Consumer.incremental_unassign`."""
        super().incremental_unassign(self._names.full_partitions(partitions))

    def consume(self, *arguments: Any, **options: Any) -> list[Message]:
        """As `Consumer.consume`."""
        return [self._names.shorten(message) for message in super().consume(*arguments, **options)]

    def poll(self, timeout: float = -1) -> Message | None:
        """As `Consumer.poll`."""
        message = super().poll(timeout)
        return None if message is None else self._names.shorten(message)

    def commit(self, *, offsets: list[TopicPartition] | None = None, asynchronous: bool = True) -> Any:  # type: ignore[override]
        """As `Consumer.commit`, without messages."""
        commit: Any = super().commit
        if offsets is None:
            return commit(asynchronous=asynchronous)
        return commit(offsets=self._names.full_partitions(offsets), asynchronous=asynchronous)

    def committed(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """As `Consumer.committed`."""
        return self._names.short_partitions(super().committed(self._names.full_partitions(partitions), timeout))

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """As `Consumer.get_watermark_offsets`."""
        [full] = self._names.full_partitions([partition])
        return super().get_watermark_offsets(full, timeout, cached)

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """As `Consumer.offsets_for_times`."""
        found = super().offsets_for_times(self._names.full_partitions(partitions), timeout)
        return self._names.short_partitions(found)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """As `Consumer.list_topics`, without the topics of others."""
        name = None if topic is None else self._names.full(topic)
        return self._names.short_topics(super().list_topics(name, timeout))


@_refusing
class PrefixedProducer(kafka.Producer):
    """A producer in the terms of the catalogue."""

    def __init__(self, config: Mapping[str, Any], prefix: str) -> None:
        self._names = Names(prefix)
        super().__init__(self._names.config(config))

    def produce(self, topic: str, *, on_delivery: Any = None, **options: Any) -> None:  # type: ignore[override]
        """As `Producer.produce`; the callback gets the catalogue's name."""
        report = None
        if on_delivery is not None:

            def report(error: Any, message: Message) -> None:
                on_delivery(error, self._names.shorten(message))

        super().produce(self._names.full(topic), on_delivery=report, **options)

    def send_offsets_to_transaction(self, positions: list[TopicPartition], *arguments: Any) -> None:
        """As `Producer.send_offsets_to_transaction`."""
        super().send_offsets_to_transaction(self._names.full_partitions(positions), *arguments)

    def poll(self, timeout: float = -1) -> int:
        """As `Producer.poll`; `produce` renames the messages of its callbacks."""
        return super().poll(timeout)


@_refusing
class PrefixedAdminClient(AdminClient):
    """An admin client in the terms of the catalogue."""

    def __init__(self, config: Mapping[str, Any], prefix: str, **options: Any) -> None:
        self._names = Names(prefix)
        super().__init__(dict(config), **options)

    def list_topics(self, *arguments: Any, **options: Any) -> Any:
        """As `AdminClient.list_topics`, without the topics of others."""
        return self._names.short_topics(super().list_topics(*arguments, **options))

    def create_topics(self, topics: list[NewTopic], **options: Any) -> dict[str, Any]:  # type: ignore[override]
        """As `AdminClient.create_topics`."""
        full = [
            NewTopic(self._names.full(one.topic), one.num_partitions, one.replication_factor, config=one.config)
            for one in topics
        ]
        return self._by_short_name(super().create_topics(full, **options))

    def describe_topics(self, topics: TopicCollection, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        """As `AdminClient.describe_topics`."""
        names = [self._names.full(name) for name in topics.topic_names]
        return self._by_short_name(super().describe_topics(TopicCollection(names), **options))

    def list_offsets(self, specs: dict[TopicPartition, Any], **options: Any) -> dict[TopicPartition, Any]:  # type: ignore[override]
        """As `AdminClient.list_offsets`."""
        wanted = dict(zip(self._names.full_partitions(specs), specs.values(), strict=True))
        return self._by_short_partition(super().list_offsets(wanted, **options))

    def delete_records(self, partitions: list[TopicPartition], **options: Any) -> dict[TopicPartition, Any]:  # type: ignore[override]
        """As `AdminClient.delete_records`."""
        return self._by_short_partition(super().delete_records(self._names.full_partitions(partitions), **options))

    def describe_configs(self, resources: list[ConfigResource], **options: Any) -> dict[ConfigResource, Any]:  # type: ignore[override]
        """As `AdminClient.describe_configs`, for topics."""
        wanted = [self._full_resource(one) for one in resources]
        described = super().describe_configs(wanted, **options)
        return {ConfigResource(r.restype, self._names.short(r.name)): future for r, future in described.items()}

    def incremental_alter_configs(self, resources: list[ConfigResource], **options: Any) -> Any:  # type: ignore[override]
        """As `AdminClient.incremental_alter_configs`, for topics."""
        return super().incremental_alter_configs([self._full_resource(one) for one in resources], **options)

    def poll(self, timeout: float = -1) -> int:
        """As `AdminClient.poll`."""
        return super().poll(timeout)

    def _full_resource(self, resource: ConfigResource) -> ConfigResource:
        entries = list(resource.incremental_configs)
        return ConfigResource(resource.restype, self._names.full(resource.name), incremental_configs=entries)

    def _by_short_name(self, futures: Mapping[str, Any]) -> dict[str, Any]:
        return {self._names.short(name): future for name, future in futures.items()}

    def _by_short_partition(self, futures: Mapping[TopicPartition, Any]) -> dict[TopicPartition, Any]:
        short = self._names.short_partitions(futures)
        return dict(zip(short, futures.values(), strict=True))
