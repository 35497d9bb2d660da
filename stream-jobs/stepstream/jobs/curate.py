"""The `curate` job: caps how many nearly equal trajectories of a tenant may be trained on.

Run one of it, as `python -m stepstream.jobs.curate`. Reads the signatures on `labeled-trajectories`, which `label`
makes for tenants whose policy has a cap, and writes holds to `curation`; `label` then publishes a revision that is
not trainable. Near-duplicates meet across all partitions, so one process reads all of them, with a bounded window.

Nothing is stored here: at a start, the labels of the last `curate.history_days` are read again. What was decided
before is on `curation` and is not decided anew, though the partitions may come in another order.
"""

import logging
import time
from typing import Any

from stepstream.config import Settings
from stepstream.core.process import Stop, run, serve_metrics
from stepstream.crypto.key_ring import codec_of
from stepstream.jobs.curation.near_duplicates import NearDuplicates
from stepstream.jobs.governance.policy import EVERY_TENANT, NearDuplicatePolicy, PolicyFile
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.log_reader import LogReader
from stepstream.topics.client import wait_for_kafka
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import Curation, LabeledTrajectory, new_curation
from stepstream.topics.ids import derived_id
from stepstream.topics.producer import EventProducer
from stepstream.topics.table import Table

log = logging.getLogger(__name__)

NAME = "curate"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"
LABELS, CURATION = "labeled-trajectories", "curation"
NEAR_DUPLICATE = "near_duplicate:"
_BATCH = 500
_POLL_S = 0.25
_DAY_MS = 24 * 3600 * 1000


class Curator:
    """What is known of every tenant's newest trajectories. Pure but for the policies that it asks for."""

    def __init__(self, policies: Any) -> None:
        """`policies` has `get(tenant)`: the newest Policy record, or None."""
        self._policies = policies
        self._read: dict[str, NearDuplicatePolicy] = {}
        self._tenants: dict[str, tuple[NearDuplicatePolicy, NearDuplicates]] = {}
        self._decided: dict[str, str] = {}

    def decided(self, curation: Curation) -> None:
        """Learns of an earlier decision of this job."""
        if curation["by"] == JOB and curation["action"] == "hold" and curation["reason"].startswith(NEAR_DUPLICATE):
            self._decided[curation["trajectory_id"]] = curation["reason"].removeprefix(NEAR_DUPLICATE)

    def take(self, labelled: LabeledTrajectory) -> Curation | None:
        """Looks at a label; the decision to hold its trajectory, where it is one too many of its kind."""
        policy = self._policy(labelled["tenant"])
        if policy is None or policy.cap < 1 or labelled["split"] != "train":
            return None
        known = self._tenants.get(labelled["tenant"])
        if known is None or known[0] != policy:
            found = NearDuplicates(policy.cap, policy.threshold, policy.window)
            known = self._tenants[labelled["tenant"]] = policy, found
        name = labelled["trajectory_id"]
        if "erased" in labelled["flags"]:
            known[1].forget(name)
            return None
        if _is_out(labelled):
            return None
        cluster = known[1].add(
            name,
            labelled["group_id"],
            labelled["signature"],
            self._decided.get(name),
            "released" in labelled["flags"],
        )
        if cluster is None:
            return None
        self._decided[name] = cluster
        return new_curation(
            event_id=derived_id(JOB, "hold", name, cluster),
            occurred_at_us=labelled["occurred_at_us"],
            trajectory_id=name,
            action="hold",
            reason=NEAR_DUPLICATE + cluster,
            by=JOB,
        )

    def _policy(self, tenant: str) -> NearDuplicatePolicy | None:
        record = self._policies.get(tenant) or self._policies.get(EVERY_TENANT)
        if record is None:
            return None
        if record["event_id"] not in self._read:
            self._read[record["event_id"]] = PolicyFile.parse(record["document"]).near_duplicates
        return self._read[record["event_id"]]


def _is_out(labelled: LabeledTrajectory) -> bool:
    """Whether it is not trained on for another reason than its likeness, so that it takes nobody's place.

    When it comes back, as with a release or a new consent, that is another label. One that was let in before keeps its
    place: read again in another order, others would lose theirs.
    """
    held = [flag.removeprefix("held:") for flag in labelled["flags"] if flag.startswith("held:")]
    return labelled["consent"] != "train" or any(not reason.startswith(NEAR_DUPLICATE) for reason in held)


def main(settings: Settings, stop: Stop) -> None:
    """Runs the job until asked to stop."""
    metrics.READY.set(0)
    serve_metrics(settings.metrics)
    wait_for_kafka(settings.kafka, lambda: bool(stop))
    codec = codec_of(settings)
    reader = LogReader(settings.kafka, f"stepstream-{NAME}", lambda: bool(stop))
    producer = EventProducer(settings.kafka, codec, f"{NAME}/{VERSION}", linger_ms=0.0)
    try:
        with Table(settings, "policies") as policies, EventConsumer(settings.kafka, codec) as consumer:
            if not policies.wait_until_current(lambda: bool(stop)):
                return
            curator = Curator(policies)
            since_ms = int(time.time() * 1000 - settings.curate.history_days * _DAY_MS)
            start = {
                place: low for topic in (CURATION, LABELS) for place, (low, _) in reader.since(topic, since_ms).items()
            }
            _learn(consumer, start, curator, stop)
            consumer.follow([LABELS], start)
            while not stop:
                _work(consumer, curator, producer)
                if consumer.caught_up():
                    metrics.READY.set(1)
    finally:
        metrics.READY.set(0)
        producer.flush()
        reader.close()
        codec.close()


def _learn(consumer: EventConsumer, start: dict[tuple[str, int], int], curator: Curator, stop: Stop) -> None:
    """Reads what was decided before."""
    consumer.follow([CURATION], start)
    while not consumer.caught_up() and not stop:
        for event in consumer.poll(_BATCH, _POLL_S):
            if event.record is not None:
                curator.decided(event.record)


def _work(consumer: EventConsumer, curator: Curator, producer: EventProducer) -> None:
    """One batch: nothing is forgotten by a kill, for the same is read and found again after it."""
    held = 0
    for event in consumer.poll(_BATCH, _POLL_S):
        metrics.RECORDS_IN.labels(LABELS).inc()
        if event.record is None:
            log.error("label at partition %d offset %d cannot be read: %s", event.partition, event.offset, event.error)
            metrics.DEAD_LETTERS.labels(LABELS, "malformed").inc()
            continue
        curation = curator.take(event.record)
        if curation is not None:
            producer.send(CURATION, curation["trajectory_id"], curation)
            held += 1
    if held:
        producer.flush()
        metrics.RECORDS_OUT.labels(CURATION).inc(held)
        log.info("held %d near-duplicates", held)


if __name__ == "__main__":
    run(NAME, main)
