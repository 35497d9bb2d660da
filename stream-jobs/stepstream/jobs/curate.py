"""The `curate` job: cap the number of nearly equal trajectories of a tenant that may be trained on.

Run one process, as `python -m stepstream.jobs.curate`. It reads the signatures on `labeled-trajectories`, which `label`
computes for tenants whose policy has a cap, and writes holds to `curation`; `label` then publishes a revision that is
not trainable. Near-duplicates can be in any partition, so one process reads all of them, with a bounded window.

The job has no state: at its start, it reads the labels of the last `curate.history_days` again. It reads its earlier
decisions from `curation` and does not decide again, although the partitions may arrive in another order.
"""

import logging
import time
from collections import OrderedDict
from typing import Any

from stepstream.config import CurateSettings, Settings
from stepstream.core.metrics import stream_jobs
from stepstream.core.process import Stop, run, serve_metrics
from stepstream.crypto.key_ring import sealing_codec
from stepstream.jobs.curation.near_duplicates import NearDuplicates
from stepstream.jobs.governance.policy import EVERY_TENANT, NearDuplicatePolicy, PolicyFile
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.log_reader import LogReader
from stepstream.topics.access import wait_for_access
from stepstream.topics.catalogue import CURATION, LABELED_TRAJECTORIES, POLICIES
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import Curation, LabeledTrajectory, new_curation
from stepstream.topics.ids import DEFAULT_TENANT, derived_id
from stepstream.topics.producer import EventProducer
from stepstream.topics.table import Table

log = logging.getLogger(__name__)

NAME = "curate"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"
NEAR_DUPLICATE = "near_duplicate:"
_BATCH = 500
_POLL_S = 0.25
_DAY_MS = 24 * 3600 * 1000
_DAY_US = 1000 * _DAY_MS

_DECISIONS = stream_jobs.CURATE_DECISIONS.create()
_FORGOTTEN = stream_jobs.CURATE_FORGOTTEN.create()


class Curator:
    """Decides which trajectories to hold, from each tenant's newest ones. Pure but for the policies that it reads.

    It forgets its decisions as a restart does: those older than `history_days`, and beyond `max_decisions` the oldest.
    The flags of a trajectory's later labels repeat its decision.
    """

    def __init__(self, policies: Any, config: CurateSettings) -> None:
        """`policies` has `get(tenant)`: the newest Policy record, or None."""
        self._policies, self._config = policies, config
        self._parsed: dict[str, NearDuplicatePolicy] = {}
        self._tenants: dict[str, tuple[NearDuplicatePolicy, NearDuplicates]] = {}
        self._decided: OrderedDict[tuple[str, str], tuple[int, str]] = OrderedDict()
        """Time of the label and cluster, by tenant and trajectory; the oldest decision first."""

    def restore(self, curation: Curation) -> None:
        """Take in an earlier decision of this job. Without a tenant, a release wrote it that had no tenants in ids."""
        if curation["by"] == JOB and curation["action"] == "hold" and curation["reason"].startswith(NEAR_DUPLICATE):
            cluster = curation["reason"].removeprefix(NEAR_DUPLICATE)
            tenant = DEFAULT_TENANT if curation["tenant"] is None else curation["tenant"]
            self._remember(tenant, curation["trajectory_id"], curation["occurred_at_us"], cluster)

    def decide(self, labelled: LabeledTrajectory) -> Curation | None:
        """Add a label; return the decision to hold its trajectory, or None."""
        policy = self._policy(labelled["tenant"])
        if policy is None or policy.cap < 1 or labelled["split"] != "train":
            return None
        known = self._tenants.get(labelled["tenant"])
        if known is None or known[0] != policy:
            window = NearDuplicates(policy.cap, policy.threshold, policy.window)
            known = self._tenants[labelled["tenant"]] = policy, window
        name = labelled["trajectory_id"]
        if "erased" in labelled["flags"]:
            known[1].forget(name)
            return None
        if _is_excluded(labelled):
            return None
        cluster = known[1].add(
            name,
            labelled["group_id"],
            labelled["signature"],
            self._decision(labelled),
            "released" in labelled["flags"],
        )
        if cluster is None:
            return None
        self._remember(labelled["tenant"], name, labelled["occurred_at_us"], cluster)
        return new_curation(
            event_id=derived_id(JOB, "hold", name, cluster, tenant=labelled["tenant"]),
            occurred_at_us=labelled["occurred_at_us"],
            trajectory_id=name,
            action="hold",
            reason=NEAR_DUPLICATE + cluster,
            by=JOB,
            tenant=labelled["tenant"],
        )

    def _decision(self, labelled: LabeledTrajectory) -> str | None:
        """Return the cluster for which a trajectory is already held."""
        known = self._decided.get((labelled["tenant"], labelled["trajectory_id"]))
        if known is not None:
            return known[1]
        held = "held:" + NEAR_DUPLICATE
        return next((flag.removeprefix(held) for flag in labelled["flags"] if flag.startswith(held)), None)

    def _remember(self, tenant: str, trajectory_id: str, at_us: int, cluster: str) -> None:
        self._decided[tenant, trajectory_id] = at_us, cluster
        self._decided.move_to_end((tenant, trajectory_id))
        since_us = at_us - self._config.history_days * _DAY_US
        while len(self._decided) > self._config.max_decisions or next(iter(self._decided.values()))[0] < since_us:
            self._decided.popitem(last=False)
            _FORGOTTEN.inc()
        _DECISIONS.set(len(self._decided))

    def _policy(self, tenant: str) -> NearDuplicatePolicy | None:
        record = self._policies.get(tenant) or self._policies.get(EVERY_TENANT)
        if record is None:
            return None
        if record["event_id"] not in self._parsed:
            self._parsed[record["event_id"]] = PolicyFile.parse(record["document"]).near_duplicates
        return self._parsed[record["event_id"]]


def _is_excluded(labelled: LabeledTrajectory) -> bool:
    """Return True if another reason than similarity keeps the trajectory out of training, so that it is not counted.

    A release or a new consent publishes another label. An admitted trajectory keeps its place, because the decisions
    must not depend on the order of the labels.
    """
    held = [flag.removeprefix("held:") for flag in labelled["flags"] if flag.startswith("held:")]
    return labelled["consent"] != "train" or any(not reason.startswith(NEAR_DUPLICATE) for reason in held)


def main(settings: Settings, stop: Stop) -> None:
    """Run the job until `stop` is set."""
    metrics.READY.set(0)
    serve_metrics(settings.metrics)
    wait_for_access(settings.kafka, NAME, lambda: bool(stop))
    codec = sealing_codec(settings, keep_arrays=True)
    reader = LogReader(settings.kafka, f"stepstream-{NAME}", lambda: bool(stop))
    producer = EventProducer(settings.kafka, codec, f"{NAME}/{VERSION}", linger_ms=0.0)
    try:
        with Table(settings, POLICIES) as policies, EventConsumer(settings.kafka, codec) as consumer:
            if not policies.wait_until_current(lambda: bool(stop)):
                return
            curator = Curator(policies, settings.curate)
            since_ms = int(time.time() * 1000 - settings.curate.history_days * _DAY_MS)
            start = {
                partition: low
                for topic in (CURATION, LABELED_TRAJECTORIES)
                for partition, (low, _) in reader.since(topic, since_ms).items()
            }
            _restore_decisions(consumer, start, curator, stop)
            consumer.follow([LABELED_TRAJECTORIES], start)
            while not stop:
                _process_batch(consumer, curator, producer)
                if consumer.is_caught_up():
                    metrics.READY.set(1)
    finally:
        metrics.READY.set(0)
        producer.flush()
        reader.close()
        codec.close()


def _restore_decisions(
    consumer: EventConsumer, start: dict[tuple[str, int], int], curator: Curator, stop: Stop
) -> None:
    consumer.follow([CURATION], start)
    while not consumer.is_caught_up() and not stop:
        for event in consumer.poll(_BATCH, _POLL_S):
            if event.record is not None:
                curator.restore(event.record)


def _process_batch(consumer: EventConsumer, curator: Curator, producer: EventProducer) -> None:
    """Process one batch. After a kill, the next process reads the same labels and takes the same decisions."""
    held = 0
    for event in consumer.poll(_BATCH, _POLL_S):
        metrics.RECORDS_IN.labels(LABELED_TRAJECTORIES).inc()
        if event.record is None:
            log.error("label at partition %d offset %d cannot be read: %s", event.partition, event.offset, event.error)
            metrics.DEAD_LETTERS.labels(LABELED_TRAJECTORIES, "malformed").inc()
            continue
        curation = curator.decide(event.record)
        if curation is not None:
            producer.send(CURATION, curation["trajectory_id"], curation)
            held += 1
    if held:
        producer.flush()
        metrics.RECORDS_OUT.labels(CURATION).inc(held)
        log.info("held %d near-duplicates", held)


if __name__ == "__main__":
    run(NAME, main)
