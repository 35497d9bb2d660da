"""The `watch` job: raise an alarm when a rewarded component rises while a guard falls, and clear it later.

Run one instance, as `python -m stepstream.jobs.watch`. It reads `component-stats`, whose records are few and small, and
`rollouts`, since the statistics of versions that were taken back count no more; it writes to `alarms`. It has no state:
at each start it reads the topics from the beginning. `statistics/watching.py` compares the alarms that the statistics
justify with those on the log. So neither a kill nor a repeated record leads to a second decision.
"""

import logging
import time

from stepstream.config import Settings
from stepstream.core.metrics import stream_jobs
from stepstream.core.process import Stop, run, serve_metrics
from stepstream.crypto.key_ring import sealing_codec
from stepstream.jobs.runtime import metrics
from stepstream.jobs.statistics.watching import RAISED, Watcher
from stepstream.topics.access import wait_for_access
from stepstream.topics.catalogue import ALARMS, COMPONENT_STATS, ROLLOUTS
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.ids import now_us
from stepstream.topics.producer import EventProducer

log = logging.getLogger(__name__)

NAME = "watch"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"
_BATCH = 2000
_POLL_S = 0.25
_DECISION_INTERVAL_S = 1.0

_DECIDED = stream_jobs.ALARMS.create()
_ACTIVE = stream_jobs.ALARMS_ACTIVE.create()
_PERIODS = stream_jobs.WATCH_PERIODS.create()


def main(settings: Settings, stop: Stop) -> None:
    """Run the job until `stop`."""
    metrics.READY.set(0)
    serve_metrics(settings.metrics)
    wait_for_access(settings.kafka, NAME, lambda: bool(stop))
    codec = sealing_codec(settings)
    producer = EventProducer(settings.kafka, codec, f"{NAME}/{VERSION}", linger_ms=0.0)
    watcher = Watcher(settings.alarms, JOB)
    try:
        with EventConsumer(settings.kafka, codec) as consumer:
            consumer.follow([ALARMS])
            while not consumer.is_caught_up() and not stop:
                for event in consumer.poll(_BATCH, _POLL_S):
                    if event.record is not None:
                        watcher.add_decision(event.record)
            consumer.follow([COMPONENT_STATS, ROLLOUTS])
            decided_at = 0.0
            while not stop:
                _learn(consumer, watcher)
                if consumer.is_caught_up() and time.monotonic() - decided_at > _DECISION_INTERVAL_S:
                    _decide(producer, watcher)
                    decided_at = time.monotonic()
                    metrics.READY.set(1)
    finally:
        metrics.READY.set(0)
        producer.flush()
        codec.close()


def _learn(consumer: EventConsumer, watcher: Watcher) -> None:
    """Read a batch of statistics and rollouts."""
    for event in consumer.poll(_BATCH, _POLL_S):
        metrics.RECORDS_IN.labels(event.topic).inc()
        if event.topic == ROLLOUTS:
            watcher.set_taken_back(event.key, event.record["taken_back_versions"] if event.record is not None else ())
        elif event.record is not None:
            watcher.add_stats(event.record)
        elif event.value:
            log.error(
                "cannot read statistics at partition %d offset %d: %s", event.partition, event.offset, event.error
            )
            metrics.DEAD_LETTERS.labels(COMPONENT_STATS, "malformed").inc()


def _decide(producer: EventProducer, watcher: Watcher) -> None:
    """Publish the decisions that are due; they are durable when this returns."""
    for alarm in watcher.decide(now_us()):
        producer.send(ALARMS, alarm["alarm_id"], alarm)
        _DECIDED.labels(alarm["kind"], alarm["state"]).inc()
        metrics.RECORDS_OUT.labels(ALARMS).inc()
        log.log(
            logging.WARNING if alarm["state"] == RAISED else logging.INFO, "%s: %s", alarm["state"], alarm["message"]
        )
    producer.flush()
    _ACTIVE.set(len(watcher.active))
    _PERIODS.set(watcher.periods)


if __name__ == "__main__":
    run(NAME, main)
