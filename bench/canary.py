"""Measure how fast the control plane takes agents off a harmful version, and how many trajectories it harms.

Run it as `.venv/bin/python bench/canary.py [--quick] [--rates N,N] [--models N]`. It starts the broker, registry,
store, store-writer and control process on free ports with default settings and the default policy. A scripted fleet
serves several models at once, each at the rate; every trajectory takes its version from `rollouts`, as the gateway
does, keeps it for its whole life of 5 s, and is then written to `labeled-trajectories`. Version 1 succeeds in 80 % of
trajectories; version 2 fails and violates a policy in each. Capture, `govern` and `label` are not part of it.

`seconds`: from the begin of version 2's first trajectory to the end of its last one. `decide_s`: the part up to the
decision. `react_s`: the part from the end of the trajectory after which the test of harm can decide, to the decision;
the part before it is the wait for trajectories. `harmed`: trajectories of version 2. Each is the median over the
models, some with the largest beside it.
"""

import argparse
import heapq
import json
import os
import random
import statistics
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from in_process.runs import commit

from stepstream.config import load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.services.control.decide.canary import state_of
from stepstream.services.control.decide.policy import CanaryPolicy, ControlPolicy
from stepstream.services.control.decide.records import Outcome
from stepstream.topics import events
from stepstream.topics.catalogue import CHECKPOINTS, CONTROL_POLICIES, LABELED_TRAJECTORIES
from stepstream.topics.codec import Codec
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer
from stepstream.versions.follower import VersionFollower
from stepstream.versions.rollouts import track_of

TENANT, AGENT = "default", "support"
TASK_S = 5.0
SUCCESS = 0.8
BEFORE = 60
"""Trajectories of version 1 before version 2 is published: the default policy decides nothing below 50."""
LIMIT_S = 1800.0
PARTS = ["broker", "registry", "store", "store-writer", "control"]


@dataclass
class Fleet:
    """Agents of one model, and what they saw. Times are in seconds since the epoch."""

    model: str
    rng: random.Random
    next_s: float
    bad_began_s: list[float] = field(default_factory=list)
    bad_ended_s: list[float] = field(default_factory=list)
    decided_s: float | None = None
    is_published: bool = False

    def is_over(self) -> bool:
        """Return True once version 2 was taken back and no agent is on it any more."""
        return self.decided_s is not None and len(self.bad_began_s) == len(self.bad_ended_s)


class Agents:
    """Serves the models of one rate until version 2 is off all of them."""

    def __init__(self, producer: EventProducer, follower: VersionFollower) -> None:
        self._producer, self._follower = producer, follower
        self._running: list[tuple[float, int, Fleet, str, float, int]] = []
        self._number = 0

    def run(self, models: list[str], rate: float) -> list[Fleet]:
        """Serve each model at `rate` trajectories a minute.

        Raises:
            TimeoutError: version 2 still serves after `LIMIT_S` seconds.
        """
        fleets = [Fleet(model, random.Random(model), time.time()) for model in models]
        for fleet in fleets:
            self._publish_version(fleet.model, 1)
            for _ in range(BEFORE):
                self._write(fleet, f"{fleet.model}-before-{self._number}", time.time(), 1)
        deadline = time.monotonic() + LIMIT_S
        while not all(fleet.is_over() for fleet in fleets):
            if time.monotonic() > deadline:
                raise TimeoutError(f"a version that harms still serves after {LIMIT_S:g} s: {fleets}")
            for fleet in fleets:
                self._tick(fleet, rate)
            self._end_due()
            time.sleep(0.01)
        return fleets

    def _tick(self, fleet: Fleet, rate: float) -> None:
        served = self._follower.served(fleet.model)
        if not fleet.is_published and not served.follows_newest:
            self._publish_version(fleet.model, 2)
            fleet.is_published = True
        if fleet.decided_s is None and fleet.bad_began_s and served.canary is None:
            rollout = self._follower.rollout(fleet.model)
            fleet.decided_s = time.time() if rollout is None else rollout["occurred_at_us"] / 1e6
        now_s = time.time()
        if now_s < fleet.next_s:
            return
        fleet.next_s = now_s + fleet.rng.expovariate(rate / 60)
        name = f"{fleet.model}-{self._number}"
        version = served.version_of(track_of(TENANT, name, fleet.model, served.canary_share)) or 1
        if version == 2:
            fleet.bad_began_s.append(now_s)
        self._number += 1
        heapq.heappush(self._running, (now_s + TASK_S, self._number, fleet, name, now_s, version))

    def _end_due(self) -> None:
        while self._running and self._running[0][0] <= time.time():
            _, _, fleet, name, began_s, version = heapq.heappop(self._running)
            self._write(fleet, name, began_s, version)
            if version == 2:
                fleet.bad_ended_s.append(time.time())

    def _write(self, fleet: Fleet, name: str, began_s: float, version: int) -> None:
        """Write the label of a trajectory that ends now."""
        self._number += 1
        is_bad = version == 2
        success = not is_bad and fleet.rng.random() < SUCCESS
        began_us, ended_us = round(began_s * 1e6), now_us()
        violation = events.new_reward_component(
            name="violation", value=-is_bad, raw_value=is_bad, weight=1.0, source="step"
        )
        label = events.new_labeled_trajectory(
            event_id=new_event_id(), occurred_at_us=ended_us, trajectory_id=name, revision=1, consent="train",
            agent=AGENT, model=fleet.model, task_id="refund/1", fidelity="token", closed_by="end", complete=True,
            reward=float(success), success=success, reward_spec="outcome", labelled_by="bench",
            opened_at_us=began_us, started_at_us=began_us, ended_at_us=ended_us,
            track="canary" if is_bad else "stable", version_min=version, version_max=version,
            steps=[events.new_labeled_step(
                step_index=0, event_id=f"{name}-0", reward=float(success), return_to_go=float(success),
                components=[violation],
            )],
        )  # fmt: skip
        self._producer.send(LABELED_TRAJECTORIES, name, label)

    def _publish_version(self, model: str, version: int) -> None:
        record = events.new_checkpoint(
            event_id=new_event_id(), occurred_at_us=now_us(), model=model, version=version, uri="file:///none",
            weights_sha256="", code_version="bench", parent_version=version - 1 or None,
        )  # fmt: skip
        self._producer.send(CHECKPOINTS, f"{model}@{version}", record)
        self._producer.flush(60.0)


def enough_harmed(policy: CanaryPolicy) -> int:
    """Return how many harmed trajectories, none unharmed, the test of harm needs."""
    harmed = Outcome("canary", False, harmed=True)
    found = (n for n in range(1, 100) if state_of([harmed] * n, policy, policy.alpha).harm >= 1 / policy.rollback_alpha)
    return next(found)


def apply_policy(producer: EventProducer, rate: int, version: int) -> None:
    """Let the default policy cover the models of a rate only: those of earlier rates would take time in each cycle."""
    document = f'models = ["rate-{rate}-*"]'
    record = events.new_control_policy(
        event_id=new_event_id(), occurred_at_us=now_us(), tenant=TENANT, name="bench", version=version,
        document=document, hash="",
    )  # fmt: skip
    producer.send(CONTROL_POLICIES, "bench", record)
    producer.flush(60.0)


def figures(fleets: list[Fleet]) -> dict[str, float]:
    """Return the figures of a rate, over its models."""
    seconds = [max(fleet.bad_ended_s) - fleet.bad_began_s[0] for fleet in fleets]
    decide = [(fleet.decided_s or 0.0) - fleet.bad_began_s[0] for fleet in fleets]
    enough = enough_harmed(ControlPolicy().canary)
    react = [(fleet.decided_s or 0.0) - sorted(fleet.bad_ended_s)[enough - 1] for fleet in fleets]
    harmed = [len(fleet.bad_ended_s) for fleet in fleets]
    return {
        "seconds": round(statistics.median(seconds), 1),
        "seconds_most": round(max(seconds), 1),
        "decide_s": round(statistics.median(decide), 1),
        "react_s": round(statistics.median(react), 1),
        "react_most_s": round(max(react), 1),
        "harmed": statistics.median(harmed),
        "harmed_most": max(harmed),
        "runs": len(fleets),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="200 trajectories a minute, 2 models")
    parser.add_argument("--rates", default="10,50,200", help="trajectories a minute of each model")
    parser.add_argument("--models", type=int, default=5, help="models at once, each a run of its own")
    arguments = parser.parse_args()
    rates, models = ([200], 2) if arguments.quick else ([*map(int, arguments.rates.split(","))], arguments.models)
    budget, found = ControlPolicy().canary.harm_budget, {}
    titles = f"{'a minute':>8} {'seconds':>8} {'most':>8} {'decide s':>9} {'react s':>8} {'harmed':>7} {'most':>5}"
    print(f"{titles}   budget {budget:g}")
    with tempfile.TemporaryDirectory(prefix="canary-bench-") as folder:
        settings = isolated(load({}), Path(folder))
        with Stack(settings, PARTS) as stack, closing(Codec(stack.settings)) as codec:
            producer = EventProducer(stack.settings.kafka, codec, "bench", linger_ms=0)
            with VersionFollower(stack.settings) as follower:
                for number, rate in enumerate(rates, 1):
                    apply_policy(producer, rate, number)
                    names = [f"rate-{rate}-{i}" for i in range(models)]
                    one = found[rate] = figures(Agents(producer, follower).run(names, rate))
                    print(
                        f"{rate:8} {one['seconds']:8} {one['seconds_most']:8} {one['decide_s']:9} {one['react_s']:8} "
                        f"{one['harmed']:7} {one['harmed_most']:5}",
                        flush=True,
                    )
    print(json.dumps({"commit": commit(), "cores": os.cpu_count(), "harm_budget": budget, "rates": found}))


if __name__ == "__main__":
    main()
