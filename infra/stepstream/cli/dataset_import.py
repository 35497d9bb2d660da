"""Reads a file's trajectories, checks them as `govern` will, and publishes those that are sound."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import orjson
from fastavro.validation import ValidationError

from stepstream.config import Settings
from stepstream.crypto.key_ring import codec_of
from stepstream.datasets import FORMATS, Episode, Origin, Unreadable
from stepstream.datasets.files import FileLine, documents
from stepstream.jobs.governance.consent import stricter
from stepstream.jobs.governance.validation import check_envelope, check_feedback, check_step
from stepstream.jobs.runtime.record import InvalidRecord
from stepstream.schemas import schema
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.ids import now_us
from stepstream.topics.producer import EventProducer

_FUTURE_US = 300 * 1_000_000
_OVERHEAD = 2048
"""Bytes of a Kafka record beside its value, with room to spare."""
_WAITING = 20_000
_POLL_S = 0.5
_SCHEMAS = {topic: fastavro.parse_schema(schema(TOPICS[topic].schema)) for topic in ("steps", "feedback")}


class Bad(NamedTuple):
    """A place of the file that could not be used."""

    line: int
    reason: str


class Found(NamedTuple):
    """A trajectory of the file."""

    line: int
    episode: Episode


def read(path: Path, name: str, origin: Origin, *, tenant: str | None, agent: str | None) -> Iterator[Found | Bad]:
    """The trajectories of a file, each checked, one document in memory at a time.

    Args:
        path: the file.
        name: its format.
        origin: what it does not say; its consent is the most that is allowed, whatever the file says.
        tenant: put in the place of what the file says; None: the file counts.
        agent: as `tenant`.
    """
    form = FORMATS["rlds" if name == "parquet" else name]
    seen: dict[int, int] = {}
    for place in _places(path, name):
        if place.error is not None:
            yield Bad(place.line, place.error)
            continue
        try:
            for episode in form.read(place.document, origin):
                check(episode)
                if not episode.ours:
                    _check_alone(episode, seen)
                _override(episode, origin, tenant, agent)
                yield Found(place.line, episode)
        except Unreadable as error:
            yield Bad(place.line, str(error))


def check(episode: Episode) -> None:
    """Checks a trajectory's records.

    Raises:
        Unreadable: `govern` would refuse one of them.
    """
    latest = now_us()
    for topic, record in _records(episode):
        try:
            fastavro.validate(record, _SCHEMAS[topic], strict=True)
            if record["trajectory_id"] != episode.trajectory_id:
                raise Unreadable("its records name several trajectories")
            check_envelope(record, episode.trajectory_id.encode(), latest, _FUTURE_US)
            if topic == "steps":
                check_step(record)
            else:
                check_feedback(record)
        except InvalidRecord as error:
            raise Unreadable(error.reason) from None
        except ValidationError as error:
            raise Unreadable(f"a record does not fit its schema: {str(error)[:200]}") from None


def _check_alone(episode: Episode, seen: dict[int, int]) -> None:
    """Notes a trajectory's id and what it says, as two numbers.

    Raises:
        Unreadable: the file has said something else under this id: events of the one would pass for the other's.
    """
    said = hash(orjson.dumps([record for _, record in _records(episode)]))
    if seen.setdefault(hash(episode.trajectory_id), said) != said:
        raise Unreadable(
            f"the file has another trajectory of the id {episode.trajectory_id}, and the same id is the same "
            "trajectory: give each an id of its own, or none"
        )


class Importer:
    """Publishes trajectories; `flush` returns when Kafka has them all. Close it."""

    def __init__(self, settings: Settings, waits: Callable[[int], None]) -> None:
        """Connects lazily; `waits` is told again and again for how many events it waits for Kafka."""
        self._waits = waits
        self._codec = codec_of(settings)
        self._producer = EventProducer(settings.kafka, self._codec, "stepstream import")

    def publish(self, found: Found) -> Found | Bad:
        """Queues a trajectory whole, or nothing of it.

        Raises:
            RegistryUnavailable: the registry does not answer.
        """
        episode, encoded = found.episode, []
        for topic, record in _records(episode):
            value = self._codec.encode(topic, record)
            if len(value) > TOPICS[topic].max_message_bytes - _OVERHEAD:
                return Bad(found.line, f"a record of {len(value)} bytes is more than topic {topic} takes")
            encoded.append((topic, value, record))
        for topic, value, record in encoded:
            self._wait(_WAITING - 1)
            self._producer.send_encoded(topic, episode.trajectory_id, value, record)
        self._producer.poll()
        return found

    def flush(self) -> None:
        """Waits for Kafka.

        Raises:
            DeliveryFailed: it refused some of it.
        """
        self._wait(0)
        self._producer.flush()

    def _wait(self, most: int) -> None:
        while (waiting := len(self._producer)) > most:
            self._producer.poll(_POLL_S)
            self._waits(waiting)

    def close(self) -> None:
        """Frees the connections."""
        self._codec.close()


def _places(path: Path, name: str) -> Iterator[FileLine]:
    if name == "parquet":
        from stepstream.datasets.parquet import documents as rows

        return rows(path)
    return documents(path)


def _records(episode: Episode) -> Iterator[tuple[str, Any]]:
    yield from (("steps", step) for step in episode.steps)
    yield from (("feedback", item) for item in episode.feedback)


def _override(episode: Episode, origin: Origin, tenant: str | None, agent: str | None) -> None:
    for _, record in _records(episode):
        if origin.consent is not None:
            record["consent"] = stricter(record["consent"], origin.consent)
        if tenant is not None:
            record["tenant"] = tenant
    if agent is not None:
        for step in episode.steps:
            step["agent"] = agent
