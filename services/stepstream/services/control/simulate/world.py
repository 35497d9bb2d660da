"""Simulate one fleet: trajectories with two task families, a tool, versions of weights and prompt, and a fault. Pure.

A tick is two hours of traffic. Rates are those of a mid-sized deployment: easy tasks succeed in 80 %, hard ones in 40 %
of attempts; four trajectories in ten call the tool, which fails in 2 % of its calls. All chance comes from `rng`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from stepstream.analytics.estimate import Estimate
from stepstream.analytics.success import Attempts
from stepstream.analytics.tools import Calls
from stepstream.services.control.decide.canary import compared
from stepstream.services.control.decide.records import (
    Canary,
    Candidate,
    Groups,
    History,
    Lever,
    Outcome,
    Past,
    Promotion,
    RewardAlarm,
    Shadow,
    Snapshot,
    Source,
    Stratum,
    ToolWindow,
)

TENANT, AGENT, MODEL = "default", "fleet", "m"
TICK_US = 2 * 3_600_000_000
START_US = 20_000 * 24 * 3_600_000_000
FAMILIES = {"easy": 0.8, "hard": 0.4}
TOOL_SHARE, TOOL_ERRORS, TOOL_BROKEN = 0.4, 0.02, 0.5
WITHOUT_TOOL = 0.1
"""Loss of success of a trajectory that needs the tool while it is disabled."""
WINDOW_TICKS, BASELINE_TICKS = 4, 84
GAINS = {"examples": 0.15, "weights": 0.12, "poison": -0.3, "gamed": -0.2, "equal": 0.0}
"""Change of success by a version."""
DRIFT, DRIFT_TICKS = 0.35, 40
WINDOW_OUTCOMES = 500
"""Newest outcomes of a snapshot without a canary or promotion."""
PROMOTION_OUTCOMES = 1500
"""Newest outcomes of a snapshot after a promotion."""
TRAINING_TICKS = 8
REPLAYED = 200
"""Recorded prompts, each of a task of its own, that a shadow replay compares."""


@dataclass
class World:
    """State of a fleet. `faults`: names of `GAINS`, or `tool`, `drift`, `mix`."""

    faults: frozenset[str]
    traffic: int
    onset: int
    rng: np.random.Generator
    tick: int = 0
    gain: dict[str, float] = field(default_factory=lambda: {"w0": 0.0, "p0": 0.0})
    serving: dict[str, str] = field(default_factory=lambda: {"weights": "w0", "prompt": "p0"})
    canary: Canary | None = None
    promotion: Promotion | None = None
    drifting: str = ""
    """Version of the weights that loses success slowly."""
    candidates: list[Candidate] = field(default_factory=list)
    learning: bool = True
    trained_at: int | None = None
    tool_disabled: bool = False
    alarm: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    calls: list[Calls] = field(default_factory=lambda: [Calls(0, 0)])
    """Calls of the tool until each tick, and those that failed."""
    earlier: list[int] = field(default_factory=lambda: [0] * 4)
    """Stable outcomes before the newest promotion, at 2 · hard + success."""
    now: list[int] = field(default_factory=lambda: [0] * 4)
    served: int = 0
    harm: float = 0.0
    """Successes that were lost against the first versions without a fault."""
    gained: float = 0.0

    def __post_init__(self) -> None:
        self.learning = "weights" not in self.faults

    @property
    def now_us(self) -> int:
        """Return the time of the tick."""
        return START_US + self.tick * TICK_US

    @property
    def onset_us(self) -> int:
        """Return the time at which the fault begins."""
        return START_US + self.onset * TICK_US

    def advance(self) -> None:
        """Serve one tick of traffic."""
        self.tick += 1
        if self.tick == self.onset:
            self._begin_fault()
        if self.trained_at is not None and self.tick >= self.trained_at:
            self.trained_at = None
            self.publish("weights", GAINS["weights"])
        drawn = self.rng.random((5, self.traffic))
        hard = drawn[0] < (0.9 if "mix" in self.faults and self.tick >= self.onset else 0.4)
        tried = drawn[1] < (self.canary.share if self.canary else 0.0)
        needed = drawn[2] < TOOL_SHARE
        base = np.where(hard, FAMILIES["hard"], FAMILIES["easy"])
        chance = np.clip(base + self._shift(tried), 0.01, 0.99)
        if self.tool_disabled:
            used = failed = 0
            chance = np.where(needed, np.maximum(0.01, chance - WITHOUT_TOOL), chance)
        else:
            broken = needed & (drawn[3] < self._tool_errors())
            used, failed = int(needed.sum()), int(broken.sum())
            chance = np.where(broken, 0.0, chance)
        difference = chance - base
        self.harm -= float(np.minimum(0, difference).sum())
        self.gained += float(difference.sum())
        codes = 2 * hard + (drawn[4] < chance)
        share = self.canary.share if self.canary else 0.0
        per_canary = round((1 - share) / share) if share else 1
        kinds = _kinds(per_canary)
        self.outcomes.extend([kinds[code] for code in (codes + 4 * tried).tolist()])
        for code in codes[~tried].tolist():
            self.now[code] += 1
        self.calls.append(Calls(self.calls[-1].n + used, self.calls[-1].errors + failed))
        self.served += self.traffic

    def publish(self, lever: Lever, gain: float, headroom: Estimate | None = None) -> str:
        """Add a version that may be tried; return its name."""
        version = f"{lever[0]}{len(self.gain)}"
        self.gain[version] = gain
        self.candidates.append(Candidate(lever, version, self.serving[lever], headroom))
        return version

    def serve(self, lever: Lever, version: str) -> None:
        """Serve a version to all."""
        self._restart()
        self.earlier, self.now = self.now, [0] * 4
        self.promotion = Promotion(lever, version, self.serving[lever], self.now_us)
        self.serving[lever] = version
        self.candidates = [one for one in self.candidates if one.version != version]

    def take_back(self, lever: Lever, version: str) -> None:
        """Serve the parent of the newest promotion again."""
        self._restart()
        self.serving[lever] = version
        self.promotion = None

    def start_canary(self, candidate: Candidate, share: float) -> None:
        """Serve a candidate to a share of the traffic."""
        self._restart()
        self.candidates = [one for one in self.candidates if one.version != candidate.version]
        shadow = None if share else self._replay(candidate)
        self.canary = Canary(candidate.lever, candidate.version, candidate.parent, self.now_us, share, shadow=shadow)

    def end_canary(self) -> None:
        """Serve the canary's parent to all again."""
        self._restart()

    def train(self) -> None:
        """Begin learning; weights that can learn yield a version after `TRAINING_TICKS`."""
        self.learning = True
        if "weights" in self.faults and self.tick >= self.onset and self.trained_at is None:
            self.trained_at = self.tick + TRAINING_TICKS

    def snapshot(self) -> Snapshot:
        """Return what a controller sees."""
        calls, last = self.calls, self.tick
        middle, first = max(0, last - WINDOW_TICKS), max(0, last - WINDOW_TICKS - BASELINE_TICKS)
        strata = {
            family: Stratum(_attempts(self.earlier, i), _attempts(self.now, i)) for i, family in enumerate(FAMILIES)
        }
        newest = len(self.outcomes) if self.canary else PROMOTION_OUTCOMES if self.promotion else WINDOW_OUTCOMES
        return Snapshot(
            tenant=TENANT,
            agent=AGENT,
            model=MODEL,
            at_us=self.now_us,
            complete_until_us=self.now_us,
            source=Source("simulated", str(self.tick)),
            outcomes=tuple(self.outcomes[-newest:]) if newest else (),
            baseline=_attempts(self.earlier),
            tools=(
                ToolWindow(
                    "search",
                    "1",
                    "timeout",
                    _difference(calls[middle], calls[first]),
                    _difference(calls[last], calls[middle]),
                    offered=not self.tool_disabled,
                ),
            ),
            groups=self._groups(),
            strata=strata,
            candidates=tuple(self.candidates),
            alarms=(RewardAlarm("a1", "the reward rose, the guard fell"),) if self.alarm else (),
            learning=self.learning,
        )

    def history(self, decisions: Sequence[Past]) -> History:
        """Return what a controller that took the decisions knows beside the snapshot."""
        return History(tuple(decisions), self.canary, self.promotion)

    def _begin_fault(self) -> None:
        for name in sorted(self.faults & {"poison", "equal"}):
            self.publish("weights", GAINS[name])
        if "examples" in self.faults:
            gain = GAINS["examples"]
            self.publish("prompt", gain, Estimate(gain, gain - 0.06, gain + 0.06, 200, 200))
        if "gamed" in self.faults:
            self.alarm = True
        if self.faults & {"drift", "mix"}:
            self.gain["w1"] = 0.0
            self.serve("weights", "w1")
            self.drifting = "w1" if "drift" in self.faults else ""

    def _shift(self, tried: np.typing.NDArray[np.bool_]) -> np.typing.NDArray[np.float64]:
        """Return the change of success of each trajectory by the versions that serve it."""
        shift = sum(self.gain[version] for version in self.serving.values())
        if self.drifting and self.serving["weights"] == self.drifting:
            shift -= DRIFT * min(1.0, (self.tick - self.onset) / DRIFT_TICKS)
        tested = 0.0
        if self.canary is not None:
            tested = self.gain[self.canary.version] - self.gain[self.serving[self.canary.lever]]
        return np.where(tried, shift + tested, shift)

    def _replay(self, candidate: Candidate) -> Shadow:
        """Let a candidate and its parent answer recorded prompts, half of them of hard tasks."""
        base = np.repeat(list(FAMILIES.values()), REPLAYED // len(FAMILIES))
        drawn = self.rng.random((2, base.size))
        gain = self.gain[candidate.version] - self.gain[self.serving[candidate.lever]]
        before, after = drawn[0] < base, drawn[1] < np.clip(base + gain, 0.01, 0.99)
        return compared(after.astype(float) - before)

    def _groups(self) -> Groups:
        """Return groups that yield a gradient; while the weights cannot learn, none does."""
        idle = "weights" in self.faults and self.tick < self.onset
        return Groups(40, 40 if idle else 12, 0.6)

    def _tool_errors(self) -> float:
        return TOOL_BROKEN if "tool" in self.faults and self.tick >= self.onset else TOOL_ERRORS

    def _restart(self) -> None:
        self.outcomes = []
        self.canary = None


@lru_cache
def _kinds(per_canary: int) -> tuple[Outcome, ...]:
    """Return the outcomes that differ, at 4 · canary + 2 · hard + success."""
    return tuple(
        Outcome(track, success, "", family, per_canary=per_canary)
        for track in ("stable", "canary")
        for family in FAMILIES
        for success in (False, True)
    )


def _attempts(counts: Sequence[int], family: int | None = None) -> Attempts:
    """Return the attempts at a family, by its index; None: at all."""
    chosen = counts if family is None else counts[2 * family : 2 * family + 2]
    return Attempts(sum(chosen), sum(chosen[1::2]))


def _difference(later: Calls, earlier: Calls) -> Calls:
    return Calls(later.n - earlier.n, later.errors - earlier.errors)
