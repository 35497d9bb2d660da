"""End a copy so that the jobs of the new prefix go on where those of the old one ended.

The results of a job that writes a copied topic, as `govern` or `label`, are in the copy. It goes on after the copied
inputs, and folds them again only for its state. The other jobs, as `measure` and `store`, start at the beginning: their
results depend on partitions, or are no topic.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import ConsumerGroupState

from stepstream.config import Settings
from stepstream.jobs.log_copy.copier import COPIED, CopyRefused, LogCopier
from stepstream.jobs.runtime.log_reader import LogReader
from stepstream.jobs.runtime.processor import consumer_group
from stepstream.topics import client
from stepstream.topics.catalogue import TOPICS

_CALL_S = 30.0


def switch(settings: Settings, source: str, copier: LogCopier) -> dict[str, list[str]]:
    """Copy the rest, and set the positions of the jobs under the new prefix; return the topics of each job's group.

    1. Copy to the end, and check that the source's jobs have read everything and have ended.
    2. Repeat while records came meanwhile.
    3. Delete the keys that the source lacks: its compaction may have removed the tombstone of a copied record.
    4. Check that the target has the copies alone. Commit the positions.

    Raises:
        CopyRefused: a job of the source runs or lags, or something else writes to the target.
    """
    while True:
        copier.copy_all()
        groups = _groups_at_end(settings, source)
        if not copier.lag():
            break
    copier.delete(_deleted_since(settings, source))
    copier.check_untouched()
    copier.finish(groups)
    return groups


def continuing_jobs() -> list[str]:
    """Return the writers of copied topics; those among them that are jobs have a consumer group."""
    return sorted({writer for topic in TOPICS.values() if topic.copied for writer in topic.writers})


def _groups_at_end(settings: Settings, source: str) -> dict[str, list[str]]:
    """Return the topics that each continuing job has read, by its group.

    Raises:
        CopyRefused: a job runs, or has not read everything.
    """
    kafka = settings.kafka.model_copy(update={"prefix": source})
    metadata = client.admin_client(kafka).list_topics(timeout=_CALL_S).topics
    counts = {topic: len(metadata[topic].partitions) for topic in COPIED}
    found = {}
    for job in continuing_jobs():
        group = consumer_group(job)
        with _log_reader(settings, source, group) as reader:
            committed = reader.committed(COPIED, range(max(counts.values())))
            if not committed:
                continue  # it never ran
            topics = sorted({topic for topic, _ in committed})
            ends = reader.ends((topic, number) for topic in topics for number in range(counts[topic]))
        behind = {one: end - committed[one].offset if one in committed else end for one, end in ends.items()}
        _check_ended(settings, source + group)
        if lag := sum(behind.values()):
            raise CopyRefused(
                f"{source}{group} has {lag} offsets to read: start the job under the old prefix until it has, stop it, "
                "and finish the copy again"
            )
        found[group] = topics
    return found


def _check_ended(settings: Settings, group: str) -> None:
    admin = client.admin_client(settings.kafka.model_copy(update={"prefix": ""}))  # the group's name is whole
    described = admin.describe_consumer_groups([group], request_timeout=_CALL_S)[group].result()
    if described.state not in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD):
        raise CopyRefused(
            f"the group {group} has {len(described.members)} members: stop the producers, wait until the jobs have "
            "read everything, stop the jobs, and finish the copy again; a stopped job stays a member for "
            f"{settings.jobs.session_timeout_s:g} s"
        )


@contextmanager
def _log_reader(settings: Settings, prefix: str, group: str) -> Iterator[LogReader]:
    reader = LogReader(settings.kafka.model_copy(update={"prefix": prefix}), group, lambda: False)
    try:
        yield reader
    finally:
        reader.close()


def _deleted_since(settings: Settings, source: str) -> list[tuple[str, bytes]]:
    """Return the topic and key of each copied record of a compacted topic whose key the source lacks now."""
    compacted = [topic for topic in COPIED if TOPICS[topic].is_compacted]
    prefixes = source, settings.kafka.prefix
    with _log_reader(settings, prefixes[0], "unused") as old, _log_reader(settings, prefixes[1], "unused") as new:
        return [(topic, key) for topic in compacted for key in sorted(_live_keys(new, topic) - _live_keys(old, topic))]


def _live_keys(reader: LogReader, topic: str) -> set[bytes]:
    """Return the keys of a compacted topic whose newest record is no tombstone."""
    live: set[bytes] = set()
    for batch in reader.read(reader.since(topic, 0)):
        for record in batch:
            if record.key is None:
                continue
            if record.value is None:
                live.discard(record.key)
            else:
                live.add(record.key)
    return live
