"""Measure what a change of a consent or an erasure costs `label` against the number of trajectories that it has saved.

Run it as `.venv/bin/python bench/consent_changes.py [--quick]`. It needs no broker. One partition's state is folded
from trajectories of one step and the feedback that ends them, in a RocksDB in a temporary folder. Each person has ten
trajectories, and one person in a hundred belongs to the smaller tenant. Then one decision at a time is made, and ticks
run until nothing is left to review, each with its write, as in the job. A tick is the processing thread's unit of work:
records of the partition wait for it. `label` runs four ticks a second, so `ticks` / 4 is the least duration in seconds.
"""

import argparse
import json
import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from label_length import LocalCodec
from streams.traffic import governed, trajectory

from stepstream.config.master_keys import new_master_key, parse_master_keys
from stepstream.crypto.key_service import LocalKeyService
from stepstream.jobs.governance.consent import consent_key
from stepstream.jobs.governance.decision_log import DecisionLog
from stepstream.jobs.governance.trajectory_policy import DecisionChange, TrajectoryPolicy
from stepstream.jobs.labels import JOB
from stepstream.jobs.labels.fold import LabelFold
from stepstream.jobs.rewards.spec import RewardSpec
from stepstream.jobs.rewards.spec_lookup import FixedSpec
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.state import PartitionState
from stepstream.topics.catalogue import CONSENTS, ERASURES, GOVERNED_FEEDBACK, GOVERNED_STEPS
from stepstream.topics.events import Consent
from stepstream.topics.ids import new_event_id

SIZES = (10_000, 1_000_000)
QUICK_SIZES = (1_000, 5_000)
BATCH = 500
A_PERSON = 10
SMALL_TENANT = 100
"""One person in so many belongs to the smaller tenant."""
NOW_MS = 1_760_000_000_000
PERSON = "person-7"
LARGE_TICKS = 20
LARGE = f"large tenant, {LARGE_TICKS} ticks"


def tenant_of(person: int) -> str:
    return "small" if person % SMALL_TENANT == 0 else "large"


class Decisions:
    """`TrajectoryPolicies` from decisions in memory, with the log of changes and the digests of the job."""

    def __init__(self) -> None:
        self._keys = LocalKeyService(parse_master_keys(new_master_key()))
        self._log = DecisionLog()
        self._log.load({})
        self._tenants: dict[str, Consent] = {}
        self._persons: dict[str, Consent] = {}
        self._erased: set[str] = set()

    def of(self, tenant: str, agent: str, users: Sequence[str], started_us: int) -> TrajectoryPolicy:
        levels = [self._tenants.get(tenant, "train"), *(self._persons.get(user, "train") for user in users)]
        erased = bool(self._erased) and any(self.subject_of(tenant, user) in self._erased for user in users)
        return TrajectoryPolicy(consent=min(levels, key=["none", "analyse", "train"].index), erased=erased)

    def fingerprint(self) -> int:
        self._log.read()
        return self._log.fingerprint

    def changes_since(self, cursor: int | None) -> tuple[int, list[DecisionChange] | None]:
        self._log.read()
        return self._log.since(cursor)

    def subject_of(self, tenant: str, user: str) -> str:
        return self._keys.subject(tenant, user)

    def limit_person(self, consent: Consent) -> None:
        """Change the consent of a person with ten trajectories."""
        self._persons[PERSON] = consent
        self._log.note(CONSENTS, consent_key("large", PERSON, None), {"event_id": new_event_id()})

    def limit_tenant(self, tenant: str, consent: Consent) -> None:
        """Change the consent of a tenant."""
        self._tenants[tenant] = consent
        self._log.note(CONSENTS, consent_key(tenant, None, None), {"event_id": new_event_id()})

    def erase_person(self) -> None:
        """Erase the person."""
        subject = self.subject_of("large", PERSON)
        self._erased.add(subject)
        self._log.note(ERASURES, subject, {"event_id": new_event_id(), "tenant": "large"})


class Partition:
    """A partition's state and fold."""

    def __init__(self, folder: Path, decisions: Decisions) -> None:
        self.codec: Any = LocalCodec()
        self.state = PartitionState(folder)
        self._decisions = decisions
        self.open()

    def open(self) -> None:
        """Make the fold, as when the partition is assigned."""
        self.fold = LabelFold(self.state, FixedSpec(RewardSpec()), self.codec, self._decisions)

    def fill(self, count: int) -> float:
        """Fold `count` trajectories; return the seconds of the folding."""
        seconds, rng = 0.0, random.Random(0)
        for first in range(0, count, BATCH):
            records = [record for number in range(first, first + BATCH) for record in self._records(number, rng)]
            began = time.perf_counter()
            changes, out = self.state.begin(), Outputs(JOB, self.codec, lambda call: call())
            for record in records:
                self.fold.apply(record, self.codec.decode(record.topic, record.value), changes, out)
            self.fold.end_batch(changes, out)
            self.state.write(changes, {}, NOW_MS)
            seconds += time.perf_counter() - began
        return seconds

    def _records(self, number: int, rng: random.Random) -> list[Record]:
        person = number // A_PERSON
        [step, *_], ending = trajectory(f"t-{number}", rng, steps_of_one=1)
        owner = {"tenant": tenant_of(person), "user": f"person-{person}"}
        events = ((GOVERNED_STEPS, step | owner), (GOVERNED_FEEDBACK, ending | owner))
        return [
            Record(topic, 0, number, NOW_MS, b"", self.codec.encode(topic, governed(event))) for topic, event in events
        ]

    def review(self, most: float = math.inf) -> dict[str, float]:
        """Run ticks until nothing is left, at most `most`; return their number and times, and the published labels."""
        longest = total = labels = ticks = 0.0
        while ticks < most and self.fold.due(NOW_MS):
            began = time.perf_counter()
            changes, out = self.state.begin(), Outputs(JOB, self.codec, lambda call: call())
            self.fold.tick(NOW_MS, changes, out)
            self.state.write(changes, {}, NOW_MS)
            took = time.perf_counter() - began
            longest, total, ticks, labels = max(longest, took), total + took, ticks + 1, labels + len(out.events)
        return {"labels": labels, "ticks": ticks, "total_s": total, "longest_tick_ms": longest * 1e3}


def reopen(partition: Partition, decisions: Decisions) -> None:
    """Change the consent of a person while nobody holds the partition."""
    decisions.limit_person("none")
    partition.open()


def measure(count: int) -> dict[str, dict[str, float]]:
    """Return the cost of each kind of decision at `count` trajectories, by name."""
    with tempfile.TemporaryDirectory() as folder:
        decisions = Decisions()
        partition = Partition(Path(folder) / "0", decisions)
        fold_s = partition.fill(count)
        print(f"\n{count:,} trajectories, folded in {fold_s:,.0f} s\n")
        print(f"{'decision':<30} {'labels':>9} {'ticks':>7} {'total s':>9} {'longest tick ms':>16}")
        partition.review()
        found = {}
        kinds: tuple[tuple[str, Callable[[], object], float], ...] = (
            ("consent of a person", lambda: decisions.limit_person("analyse"), math.inf),
            ("erasure of a person", decisions.erase_person, math.inf),
            ("consent of the small tenant", lambda: decisions.limit_tenant("small", "analyse"), math.inf),
            ("while no worker had it", lambda: reopen(partition, decisions), math.inf),
            (LARGE, lambda: decisions.limit_tenant("large", "analyse"), LARGE_TICKS),
        )
        for name, decide, most in kinds:
            decide()
            result = found[name] = partition.review(most)
            print(
                f"{name:<30} {result['labels']:>9,.0f} {result['ticks']:>7,.0f} {result['total_s']:>9.2f} "
                f"{result['longest_tick_ms']:>16.1f}",
                flush=True,
            )
        partition.state.close()
    return found


def main() -> None:
    """Print a table for each size, then one line of JSON with the figures of the largest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer trajectories")
    sizes = QUICK_SIZES if parser.parse_args().quick else SIZES
    for size in sizes:
        found = measure(size)
    person, erasure = found["consent of a person"], found["erasure of a person"]
    figures = {
        "trajectories": sizes[-1],
        "person_s": round(person["total_s"], 3),
        "erasure_s": round(erasure["total_s"], 2),
        "erasure_ticks": round(erasure["ticks"]),
        "all_s": round(found["while no worker had it"]["total_s"], 1),
        "longest_tick_ms": round(max(result["longest_tick_ms"] for result in found.values()), 1),
    }
    print(json.dumps({"consent_changes": figures}))


if __name__ == "__main__":
    main()
