"""Simulate one fleet: trajectories with two task families, a tool, versions of weights and prompt, and a fault.

A tick is two hours of traffic. Rates are those of a mid-sized deployment: easy tasks succeed in 80 %, hard ones in 40 %
of attempts; four trajectories in ten call the tool, which fails in 2 % of its calls.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from stepstream.analytics.estimate import Estimate
from stepstream.analytics.success import Attempts
from stepstream.analytics.tools import Calls
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
    Snapshot,
    Source,
    Stratum,
    ToolWindow,
)
from stepstream.topics.events import Track

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
WINDOW_OUTCOMES = 1500
TRAINING_TICKS = 8


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
    calls: list[Calls] = field(default_factory=list)
    earlier: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """Stable outcomes before the newest promotion, by family and success."""
    now: Counter[tuple[str, bool]] = field(default_factory=Counter)
    served: int = 0
    harm: float = 0.0
    """Successes that were lost against the first versions without a fault."""
    gained: float = 0.0

    def __post_init__(self) -> None:
        self.learning = "weights" not in self.faults

    @property
    def now_us(self) -> int:
        return START_US + self.tick * TICK_US

    def advance(self) -> None:
        """Serve one tick of traffic."""
        self.tick += 1
        if self.tick == self.onset:
            self._begin_fault()
        if self.trained_at is not None and self.tick >= self.trained_at:
            self.trained_at = None
            self.publish("weights", GAINS["weights"])
        hard = 0.9 if "mix" in self.faults and self.tick >= self.onset else 0.4
        families = np.where(self.rng.random(self.traffic) < hard, "hard", "easy")
        base = np.array([FAMILIES[name] for name in families])
        tried = self.rng.random(self.traffic) < (self.canary.share if self.canary else 0.0)
        chance = np.clip(base + self._shift(tried), 0.01, 0.99)
        needed = self.rng.random(self.traffic) < TOOL_SHARE
        failed = needed & (self.rng.random(self.traffic) < self._tool_errors())
        if self.tool_disabled:
            chance = np.where(needed, np.maximum(0.01, chance - WITHOUT_TOOL), chance)
            failed &= False
        used = needed & (not self.tool_disabled)
        difference = np.where(failed, 0, chance) - base
        self.harm += float(np.maximum(0, -difference).sum())
        self.gained += float(difference.sum())
        good = (self.rng.random(self.traffic) < chance) & ~failed
        per_canary = round((1 - self.canary.share) / self.canary.share) if self.canary else 1
        for family, canary, success in zip(families, tried, good, strict=True):
            track: Track = "canary" if canary else "stable"
            self.outcomes.append(Outcome(track, bool(success), "", str(family), per_canary=per_canary))
            if not canary:
                self.now[str(family), bool(success)] += 1
        self.calls.append(Calls(int(used.sum()), int(failed.sum())))
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
        self.earlier, self.now = self.now, Counter()
        self.promotion = Promotion(lever, version, self.serving[lever], self.now_us)
        self.serving[lever] = version
        self.candidates = [one for one in self.candidates if one.version != version]

    def take_back(self, lever: Lever, version: str) -> None:
        """Serve the parent of the newest promotion again."""
        self._restart()
        self.serving[lever] = version
        self.promotion = None

    def start_canary(self, candidate: Candidate, share: float) -> None:
        self._restart()
        self.candidates = [one for one in self.candidates if one.version != candidate.version]
        self.canary = Canary(candidate.lever, candidate.version, candidate.parent, self.now_us, share)

    def end_canary(self) -> None:
        self._restart()

    def train(self) -> None:
        self.learning = True
        if "weights" in self.faults and self.tick >= self.onset and self.trained_at is None:
            self.trained_at = self.tick + TRAINING_TICKS

    def snapshot(self) -> Snapshot:
        """Return what a controller sees."""
        before, window = self.calls[:-WINDOW_TICKS][-BASELINE_TICKS:], self.calls[-WINDOW_TICKS:]
        earlier, now = self.earlier, self.now
        strata = {family: Stratum(_attempts(earlier, family), _attempts(now, family)) for family in FAMILIES}
        outcomes = self.outcomes if self.canary or self.promotion else self.outcomes[-WINDOW_OUTCOMES:]
        return Snapshot(
            tenant="default",
            agent="fleet",
            model="m",
            at_us=self.now_us,
            complete_until_us=self.now_us,
            source=Source("simulated", str(self.tick)),
            outcomes=tuple(outcomes),
            baseline=_attempts(earlier),
            tools=(ToolWindow("search", "1", "timeout", _total(before), _total(window)),),
            groups=self._groups(),
            strata=strata,
            candidates=tuple(self.candidates),
            alarms=(RewardAlarm("a1", "the reward rose, the guard fell"),) if self.alarm else (),
            learning=self.learning,
        )

    def history(self, decisions: list[Past]) -> History:
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

    def _groups(self) -> Groups:
        """Return groups that yield a gradient; while the weights cannot learn, none does."""
        idle = "weights" in self.faults and self.tick < self.onset
        return Groups(40, 40 if idle else 12, 0.6)

    def _tool_errors(self) -> float:
        return TOOL_BROKEN if "tool" in self.faults and self.tick >= self.onset else TOOL_ERRORS

    def _restart(self) -> None:
        self.outcomes = []
        self.canary = None


def _attempts(counts: Counter[tuple[str, bool]], family: str | None = None) -> Attempts:
    chosen = {key: n for key, n in counts.items() if family in {None, key[0]}}
    return Attempts(sum(chosen.values()), sum(n for (_, success), n in chosen.items() if success))


def _total(calls: list[Calls]) -> Calls:
    return Calls(sum(one.n for one in calls), sum(one.errors for one in calls))
