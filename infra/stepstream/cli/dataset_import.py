"""Read a file's trajectories, apply the checks of `govern`, and publish the valid ones."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import orjson
from fastavro.validation import ValidationError

from stepstream.config import Settings
from stepstream.crypto.key_ring import sealing_codec
from stepstream.datasets import FORMATS, Episode, InvalidDocument, Origin
from stepstream.datasets.files import FileLine, read_documents
from stepstream.jobs.governance.consent import strictest_of
from stepstream.jobs.governance.validation import check_envelope, check_feedback, check_step
from stepstream.jobs.runtime.record import InvalidRecord
from stepstream.schemas import schema
from stepstream.topics.catalogue import FEEDBACK, STEPS, TOPICS
from stepstream.topics.ids import now_us
from stepstream.topics.producer import EventProducer

_FUTURE_US = 300 * 1_000_000
_OVERHEAD = 2048
"""Upper bound of a Kafka record's bytes besides its value."""
_MAX_IN_FLIGHT = 20_000
"""Events that Kafka may have left to acknowledge before `publish` blocks."""
_POLL_S = 0.5
_SCHEMAS = {topic: fastavro.parse_schema(schema(TOPICS[topic].schema)) for topic in (STEPS, FEEDBACK)}


class RejectedDocument(NamedTuple):
    """A document of the file that cannot be imported."""

    line: int
    reason: str


class AcceptedEpisode(NamedTuple):
    """A valid trajectory of the file."""

    line: int
    episode: Episode


def read_episodes(
    path: Path, name: str, origin: Origin, *, tenant: str | None, agent: str | None
) -> Iterator[AcceptedEpisode | RejectedDocument]:
    """Yield a file's trajectories, checked, and its invalid documents; holds one document in memory.

    Args:
        path: the file.
        name: its format.
        origin: defaults for fields that the file lacks. Its consent is an upper bound of the file's consent.
        tenant: replaces the file's tenant; None: the file's applies.
        agent: replaces the file's agent; None: the file's applies.
    """
    form = FORMATS["rlds" if name == "parquet" else name]
    digests: dict[int, int] = {}
    tenants: dict[str, str] = {}
    for line in _lines(path, name):
        if line.error is not None:
            yield RejectedDocument(line.line, line.error)
            continue
        try:
            for episode in form.read(line.document, origin):
                check_episode(episode)
                if not episode.has_extension:
                    _check_unique_id(episode, digests)
                elif tenant is not None:
                    _check_one_tenant(episode, tenants)
                _override(episode, origin, tenant, agent)
                yield AcceptedEpisode(line.line, episode)
        except InvalidDocument as error:
            yield RejectedDocument(line.line, str(error))


def check_episode(episode: Episode) -> None:
    """Check a trajectory's records as `govern` does.

    Raises:
        InvalidDocument: `govern` would reject one of them.
    """
    latest = now_us()
    for topic, record in _records(episode):
        try:
            fastavro.validate(record, _SCHEMAS[topic], strict=True)
            if record["trajectory_id"] != episode.trajectory_id:
                raise InvalidDocument(
                    f"a record names trajectory {record['trajectory_id']}, the others {episode.trajectory_id}"
                )
            check_envelope(record, episode.trajectory_id.encode(), latest, _FUTURE_US)
            if topic == STEPS:
                check_step(record)
            else:
                check_feedback(record)
        except InvalidRecord as error:
            raise InvalidDocument(error.reason) from None
        except ValidationError as error:
            raise InvalidDocument(f"a record does not fit its schema: {str(error)[:200]}") from None


def _check_unique_id(episode: Episode, digests: dict[int, int]) -> None:
    """Check that no other trajectory of the file has this id, and record a digest of its content.

    Raises:
        InvalidDocument: an earlier trajectory has this id and other content, so that their events would mix.
    """
    digest = hash(orjson.dumps([record for _, record in _records(episode)]))
    if digests.setdefault(hash(episode.trajectory_id), digest) != digest:
        raise InvalidDocument(
            f"the file has another trajectory with the id {episode.trajectory_id}: give each trajectory its own id, "
            "or none"
        )


def _check_one_tenant(episode: Episode, tenants: dict[str, str]) -> None:
    """Check that the file has this id of one tenant only, before another tenant replaces it, and record the tenant.

    Raises:
        InvalidDocument: an earlier trajectory of another tenant has this id, so that their events would mix.
    """
    for _, record in _records(episode):
        first = tenants.setdefault(episode.trajectory_id, record["tenant"])
        if first != record["tenant"]:
            raise InvalidDocument(
                f"the file has the trajectory {episode.trajectory_id} of tenant {record['tenant']} and tenant {first}: "
                "import them without --tenant, or one tenant's file at a time"
            )


class Importer:
    """Publishes trajectories. `flush` blocks until Kafka has acknowledged all; `close` frees the connections."""

    def __init__(self, settings: Settings, on_wait: Callable[[int], None]) -> None:
        """Connect lazily; `on_wait` is called with the number of unacknowledged events each time it waits."""
        self._on_wait = on_wait
        self._codec = sealing_codec(settings)
        self._producer = EventProducer(settings.kafka, self._codec, "stepstream import")

    def publish(self, accepted: AcceptedEpisode) -> AcceptedEpisode | RejectedDocument:
        """Queue a trajectory's events; none if one exceeds its topic's limit. Blocks at `_MAX_IN_FLIGHT` events.

        Raises:
            RegistryUnavailable: the registry does not answer.
        """
        episode, encoded = accepted.episode, []
        for topic, record in _records(episode):
            value = self._codec.encode(topic, record)
            if len(value) > TOPICS[topic].max_message_bytes - _OVERHEAD:
                limit = TOPICS[topic].max_message_bytes - _OVERHEAD
                return RejectedDocument(
                    accepted.line, f"a record of {len(value)} bytes exceeds the {limit} of topic {topic}: shorten it"
                )
            encoded.append((topic, value, record))
        for topic, value, record in encoded:
            self._wait_below(_MAX_IN_FLIGHT)
            self._producer.send_encoded(topic, episode.trajectory_id, value, record)
        self._producer.poll()
        return accepted

    def flush(self) -> None:
        """Block until Kafka has acknowledged every event.

        Raises:
            DeliveryFailed: Kafka rejected an event.
        """
        self._wait_below(1)
        self._producer.flush()

    def close(self) -> None:
        """Close the registry connection."""
        self._codec.close()

    def _wait_below(self, limit: int) -> None:
        while (in_flight := len(self._producer)) >= limit:
            self._producer.poll(_POLL_S)
            self._on_wait(in_flight)


def _lines(path: Path, name: str) -> Iterator[FileLine]:
    if name == "parquet":
        from stepstream.datasets.parquet import read_documents as read_rows

        return read_rows(path)
    return read_documents(path)


def _records(episode: Episode) -> Iterator[tuple[str, Any]]:
    yield from ((STEPS, step) for step in episode.steps)
    yield from ((FEEDBACK, item) for item in episode.feedback)


def _override(episode: Episode, origin: Origin, tenant: str | None, agent: str | None) -> None:
    for _, record in _records(episode):
        if origin.consent is not None:
            record["consent"] = strictest_of(record["consent"], origin.consent)
        if tenant is not None:
            record["tenant"] = tenant
    if agent is not None:
        for step in episode.steps:
            step["agent"] = agent
