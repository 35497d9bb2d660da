"""The `watch` job: raises an alarm when a rewarded component rises while a guard falls, and clears it again.

Run one of it, as `python -m stepstream.jobs.watch`. Reads `component-stats`, whose records are few and small, and
writes to `alarms`. Nothing is stored here: at a start both topics are read again. `statistics/watching.py` compares
what stands by the statistics with what stands by the log, so a kill, or a record that comes twice, decides nothing
twice.
"""

import logging
import time

from prometheus_client import Counter, Gauge

from stepstream.config import Settings
from stepstream.core.process import Stop, run, serve_metrics
from stepstream.crypto.key_ring import codec_of
from stepstream.jobs.runtime import metrics
from stepstream.jobs.statistics.watching import RAISED, Watcher
from stepstream.topics.client import wait_for_kafka
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.ids import now_us
from stepstream.topics.producer import EventProducer

log = logging.getLogger(__name__)

NAME = "watch"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"
STATS, ALARMS = "component-stats", "alarms"
_BATCH = 2000
_POLL_S = 0.25
_EVERY_S = 1.0

_DECIDED = Counter("stepstream_alarms", "Alarms that were raised or cleared, by what fell.", ["kind", "state"])
_STANDING = Gauge("stepstream_alarms_active", "Alarms that stand.")


def main(settings: Settings, stop: Stop) -> None:
    """Runs the job until asked to stop."""
    metrics.READY.set(0)
    serve_metrics(settings.metrics)
    wait_for_kafka(settings.kafka, lambda: bool(stop))
    codec = codec_of(settings)
    producer = EventProducer(settings.kafka, codec, f"{NAME}/{VERSION}", linger_ms=0.0)
    watcher = Watcher(settings.alarms, JOB)
    try:
        with EventConsumer(settings.kafka, codec) as consumer:
            consumer.follow([ALARMS])
            while not consumer.caught_up() and not stop:
                for event in consumer.poll(_BATCH, _POLL_S):
                    if event.record is not None:
                        watcher.decided(event.record)
            consumer.follow([STATS])
            decided_at = 0.0
            while not stop:
                _learn(consumer, watcher)
                if consumer.caught_up() and time.monotonic() - decided_at > _EVERY_S:
                    _decide(producer, watcher)
                    decided_at = time.monotonic()
                    metrics.READY.set(1)
    finally:
        metrics.READY.set(0)
        producer.flush()
        codec.close()


def _learn(consumer: EventConsumer, watcher: Watcher) -> None:
    """Takes in a batch of statistics."""
    for event in consumer.poll(_BATCH, _POLL_S):
        metrics.RECORDS_IN.labels(STATS).inc()
        if event.record is not None:
            watcher.learn(event.record)
        elif event.value:
            log.error(
                "statistics at partition %d offset %d cannot be read: %s", event.partition, event.offset, event.error
            )
            metrics.DEAD_LETTERS.labels(STATS, "malformed").inc()


def _decide(producer: EventProducer, watcher: Watcher) -> None:
    """Tells what is decided now; durable when it returns."""
    for alarm in watcher.decide(now_us()):
        producer.send(ALARMS, alarm["alarm_id"], alarm)
        _DECIDED.labels(alarm["kind"], alarm["state"]).inc()
        metrics.RECORDS_OUT.labels(ALARMS).inc()
        log.log(
            logging.WARNING if alarm["state"] == RAISED else logging.INFO, "%s: %s", alarm["state"], alarm["message"]
        )
    producer.flush()
    _STANDING.set(len(watcher.standing))


if __name__ == "__main__":
    run(NAME, main)
