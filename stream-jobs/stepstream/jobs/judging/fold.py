"""The fold of the `judge` job."""

import hashlib
import struct
from collections.abc import Callable
from typing import Any, Protocol, cast

from stepstream.crypto.sealing import is_erased
from stepstream.jobs.governance.consent import stricter
from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicies
from stepstream.jobs.judging.next_state import judged_step, question
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.retry import Decoder
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.events import Feedback, Step, new_feedback
from stepstream.topics.ids import derived_id
from stepstream.topics.trusted_sources import SHADOW

NAME = "judge"


VERSION = "1"


JOB = f"{NAME}@{VERSION}"


STEPS, FEEDBACK = "governed-steps", "feedback"


STEPS, FEEDBACK = "governed-steps", "feedback"


_STEP, _ASKED = b"s", b"a"


_STEP, _ASKED = b"s", b"a"


_DAY = struct.Struct(">I")


_INDEX = struct.Struct(">i")


_DAY_US = 24 * 3600 * 1_000_000


_KEPT_DAYS = 4


class Scores(Protocol):
    """Who judges; `JudgeClient` is one."""

    def score(self, asked: str) -> float | None:
        """The score of a question, or None where there is none."""
        ...


class JudgeFold:
    """One partition of steps.

    State, in buckets by day so that an old day is dropped at once: the records of steps, as they came (what is sealed
    stays sealed), and which questions were asked.
    """

    def __init__(
        self,
        scores: Scores,
        codec: Decoder,
        rules: TrajectoryPolicies,
        agents: list[str],
        tenants: list[str],
        lacks: Callable[[], str | None],
    ) -> None:
        """`lacks` says why the judge may not count now; None: it may."""
        self._scores, self._codec, self._rules = scores, codec, rules
        self._agents, self._tenants, self._lacks = agents, tenants, lacks
        self._newest_day = 0

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Notes a step, and has the one before it scored where this one holds the user's reaction to it."""
        step = cast(Step, event)
        if is_erased(step) or not self._wanted(step):
            return
        assert record.value is not None
        changes.put(_key(step, step["step_index"], 0), record.value)
        self._newest_day = max(self._newest_day, step["occurred_at_us"] // _DAY_US)
        index = judged_step(step)
        if index is None:
            return
        asked = _ASKED + _bucket(step, 0) + _digest(step, index)
        if changes.get(asked) is None:
            changes.put(asked, b"")
            if not out.silent:
                self._judge(step, index, changes, out)

    def end_batch(self, changes: Changes, out: Outputs) -> None:
        """Nothing: each step stands for itself."""

    def due(self, now_ms: int) -> bool:
        """Once a day, there is an old day to drop."""
        return now_ms * 1000 // _DAY_US > self._newest_day

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Drops the days that are over."""
        self._newest_day = now_ms * 1000 // _DAY_US
        oldest = _DAY.pack(max(0, self._newest_day - _KEPT_DAYS))
        for kind in (_STEP, _ASKED):
            changes.delete_range(kind, kind + oldest)

    def restore_published(self, event: dict[str, Any], changes: Changes) -> None:
        """Nothing: what was asked is known from the steps."""

    def _wanted(self, step: Step) -> bool:
        return (not self._agents or step["agent"] in self._agents) and (
            not self._tenants or step["tenant"] in self._tenants
        )

    def _judge(self, step: Step, index: int, changes: Changes, out: Outputs) -> None:
        kept = (changes.get(_key(step, index, days)) for days in range(_KEPT_DAYS + 1))
        stored = next((found for found in kept if found is not None), None)
        before = None if stored is None else cast(Step, self._codec.decode(STEPS, stored))
        if before is None or is_erased(before):
            out.count(metrics.JUDGED.labels("unknown"))
            return
        users = sorted({one["user"] for one in (before, step) if one["user"] is not None})
        standing = self._rules.standing(step["tenant"], step["agent"], users, before["occurred_at_us"])
        consent = stricter(standing.consent, before["consent"], step["consent"])
        if consent == "none" or standing.erased:
            out.count(metrics.JUDGED.labels("withheld"))
            return
        score = self._scores.score(question(before, step))
        out.count(metrics.JUDGED.labels("skipped" if score is None else "scored"))
        if score is not None:
            feedback = _feedback(before, step, score)
            feedback["consent"] = consent
            if (lacks := self._lacks()) is not None:
                feedback["name"], feedback["comment"] = SHADOW + feedback["name"], lacks
            out.emit(FEEDBACK, step["trajectory_id"], feedback)


def _feedback(before: Step, step: Step, score: float) -> Feedback:
    return new_feedback(
        event_id=derived_id(JOB, "next_state", _source(before), _source(step)),
        occurred_at_us=step["occurred_at_us"],
        producer=f"{NAME}/{VERSION}",
        tenant=step["tenant"],
        consent=step["consent"],
        user=step["user"],
        trajectory_id=step["trajectory_id"],
        step_index=before["step_index"],
        name="next_state",
        value=score,
        source="judge",
    )


def _source(step: Step) -> str:
    governed = step["governed"]
    return step["event_id"] if governed is None else governed["source_event_id"]


def _bucket(step: Step, days_back: int) -> bytes:
    return _DAY.pack(max(0, step["occurred_at_us"] // _DAY_US - days_back))


def _key(step: Step, index: int, days_back: int) -> bytes:
    trajectory = hashlib.blake2b(step["trajectory_id"].encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return _STEP + _bucket(step, days_back) + trajectory + _INDEX.pack(index)


def _digest(step: Step, index: int) -> bytes:
    """Names the question: results of one source event under several policies ask it once."""
    return hashlib.blake2b(f"{_source(step)}/{index}".encode(), digest_size=16).digest()
