"""Read the tokens of a step from the log, which alone has them, by the step's time and within bounds.

The tables hold no position of a step on the log. Kafka finds the first record after a time, and `govern` writes a step
soon after it occurred; imported and re-governed steps lie before the time of their label instead.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from stepstream.config import Settings
from stepstream.crypto.sealing import is_erased
from stepstream.jobs.runtime.log_reader import partition_number
from stepstream.services.console.event_log import LogUnavailable
from stepstream.topics.catalogue import GOVERNED_STEPS
from stepstream.topics.client import consumer
from stepstream.topics.codec import Codec, CodecError, RegistryUnavailable
from stepstream.topics.events import Step

MAX_RECORDS = 20_000
MAX_BYTES = 64 * 1_048_576
DEADLINE_S = 5.0
_BEFORE_US = 5_000_000
"""A producer's clock may be ahead of the broker's."""
_BEFORE_LABEL_US = 900_000_000
_CONSUMER = {
    "group.id": "unused",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "fetch.message.max.bytes": 4 * 1_048_576,
}
_BATCH = 500
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look for a step."""

    tenant: str
    trajectory_id: str
    event_id: str
    occurred_us: int
    labelled_us: int | None
    """Time of the trajectory's label; None: not labelled."""

    def begins_us(self) -> Iterator[int]:
        """Yield the times from which to read, one after the other."""
        yield self.occurred_us - _BEFORE_US
        if self.labelled_us is not None and self.labelled_us > self.occurred_us + _BEFORE_LABEL_US:
            yield self.labelled_us - _BEFORE_LABEL_US


def read_step(settings: Settings, codec: Codec, place: Place) -> Step | None:
    """Return the governed step with its tokens; None: it is not on the log near its time, or its person was erased.

    It reads at most `MAX_RECORDS` records and `MAX_BYTES` of each time, and ends after `DEADLINE_S` seconds.

    Raises:
        LogUnavailable: Kafka does not answer.
    """
    deadline = time.monotonic() + DEADLINE_S
    try:
        with closing(consumer(settings.kafka, _CONSUMER)) as log:
            for begin_us in place.begins_us():
                for value in _values(log, place.trajectory_id, begin_us // 1000, lambda: time.monotonic() >= deadline):
                    step = _decoded(codec, value)
                    if step is not None and _is_it(step, place):
                        return None if is_erased(step) else step
    except KafkaException as error:
        raise LogUnavailable(
            f"Kafka at {settings.kafka.bootstrap} does not answer: {error.args[0].str()}; see `stepstream doctor`"
        ) from None
    except RegistryUnavailable as error:
        raise LogUnavailable(str(error)) from None
    return None


def token_rows(step: Step) -> list[dict[str, Any]]:
    """Return the response's tokens: `id`, `logprob` (None: unknown), `model` and `version` sampled it, `masked`."""
    logprobs: Sequence[float] = step["response_logprobs"]
    spans = [(span["start"], span["end"], span["model"], span["version"]) for span in step["policy_spans"]]
    mask: Sequence[bool] = step["loss_mask"]
    rows = []
    at = 0
    for number, token_id in enumerate(step["response_token_ids"]):
        while at < len(spans) and spans[at][1] <= number:
            at += 1
        _, _, model, version = spans[at] if at < len(spans) and spans[at][0] <= number else (0, 0, None, None)
        rows.append(
            {
                "id": token_id,
                "logprob": logprobs[number] if number < len(logprobs) else None,
                "model": model,
                "version": version,
                "masked": bool(mask) and not mask[number],
            }
        )
    return rows


def _decoded(codec: Codec, value: bytes) -> Step | None:
    try:
        return cast(Step, codec.decode(GOVERNED_STEPS, value))
    except CodecError:  # a dead letter of every job
        return None


def _is_it(step: Step, place: Place) -> bool:
    return (step["tenant"], step["trajectory_id"], step["event_id"]) == (
        place.tenant,
        place.trajectory_id,
        place.event_id,
    )


def _values(log: Consumer, key: str, begin_ms: int, is_over: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the values of a key's records from a time on, in order, within the bounds."""
    count = len(log.list_topics(GOVERNED_STEPS, timeout=DEADLINE_S).topics[GOVERNED_STEPS].partitions)
    begin = TopicPartition(GOVERNED_STEPS, partition_number(key, count), max(0, begin_ms))
    [first] = log.offsets_for_times([begin], timeout=DEADLINE_S)
    if first.offset < 0:
        return
    log.assign([first])
    records = size = 0
    while records < MAX_RECORDS and size < MAX_BYTES and not is_over():
        for message in log.consume(_BATCH, _POLL_S):
            fault = message.error()
            if fault is not None:
                if fault.code() == KafkaError._PARTITION_EOF:
                    return
                continue
            records, size = records + 1, size + len(message)
            value = message.value()
            if message.key() == key.encode() and value is not None:
                yield value
