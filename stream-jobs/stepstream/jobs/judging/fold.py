"""Fold steps into scores of the previous steps: the fold of the `judge` job."""

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, cast

from stepstream.crypto.sealing import is_erased
from stepstream.jobs.governance.consent import strictest_of
from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicies
from stepstream.jobs.judging.next_state import judged_step, step_question
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.day_limit import CountedKind, DayLimit
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.retry import Decoder
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.catalogue import FEEDBACK, GOVERNED_STEPS
from stepstream.topics.events import Consent, Feedback, Step, new_feedback
from stepstream.topics.ids import DEFAULT_TENANT, derived_id, trajectory_name
from stepstream.topics.trusted_sources import SHADOW_PREFIX

NAME = "judge"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"

_STEP, _ASKED = b"s", b"a"
COUNTED = {_STEP: CountedKind("step", (_ASKED,))}
"""Kinds whose number has a limit."""
_DAY = struct.Struct(">I")
_INDEX = struct.Struct(">i")
_DAY_US = 24 * 3600 * 1_000_000
_KEPT_DAYS = 4
"""Days between a response and the user's reaction that still counts: a long weekend."""


class StepScorer(Protocol):
    """Scores questions; `JudgeClient` implements it."""

    def score_all(self, questions: Sequence[str]) -> list[float | None]:
        """Return the score of each question, in order; None: there is none."""
        ...


class _Question(NamedTuple):
    """Pair of steps to ask about."""

    before: Step
    step: Step
    consent: Consent


class JudgeFold:
    """Fold of one partition.

    State, in buckets by day so that an old day is deleted at once: the encrypted records of steps as they came, and the
    questions that were asked.
    """

    def __init__(
        self,
        scorer: StepScorer,
        codec: Decoder,
        policies: TrajectoryPolicies,
        agents: list[str],
        tenants: list[str],
        rejection: Callable[[], str | None],
        limit: DayLimit,
    ) -> None:
        """Create the fold.

        Args:
            scorer: scores a question.
            codec: decodes saved steps.
            policies: consent of each trajectory.
            agents: agents to judge; empty: all.
            tenants: tenants to judge; empty: all.
            rejection: returns the reason why the judge may not count now; None: it may.
            limit: bounds the saved steps.
        """
        self._scorer, self._codec, self._policies = scorer, codec, policies
        self._agents, self._tenants, self._rejection = agents, tenants, rejection
        self._limit = limit
        self._swept_day = 0
        self._questions: list[_Question] = []

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Save a step. If it has the user's reaction to a previous step, ask about that one at the end of the batch."""
        step = cast(Step, event)
        if is_erased(step) or not self._wanted(step):
            return
        assert record.value is not None
        key = _key(step)
        if changes.get(key) is None:
            self._limit.add(_STEP, _bucket(step, 0))
        changes.put(key, record.value)
        index = judged_step(step)
        if index is None:
            return
        asked = _ASKED + _bucket(step, 0) + _digest(step, index)
        if changes.get(asked) is None:
            changes.put(asked, b"")
            if not out.replaying:
                self._ask(step, index, changes, out)

    def end_batch(self, changes: Changes, out: Outputs) -> None:
        """Score the steps that the batch asked about, several at a time; publish the scores in the order of the log."""
        self._limit.save(changes, out)
        questions, self._questions = self._questions, []
        if not questions:
            return
        scores = self._scorer.score_all([step_question(asked.before, asked.step) for asked in questions])
        for asked, score in zip(questions, scores, strict=True):
            out.count(metrics.JUDGED.labels("skipped" if score is None else "scored"))
            if score is not None:
                feedback = _feedback(asked.before, asked.step, score)
                feedback["consent"] = asked.consent
                if (rejection := self._rejection()) is not None:
                    feedback["name"], feedback["comment"] = SHADOW_PREFIX + feedback["name"], rejection
                out.emit(FEEDBACK, asked.step["trajectory_id"], feedback)

    def due(self, now_ms: int) -> bool:
        """Return True once a day, when a bucket expires, and while the limit is exceeded."""
        return now_ms * 1000 // _DAY_US > self._swept_day or self._limit.is_exceeded

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Delete the expired buckets, and the oldest steps beyond the limit."""
        today = now_ms * 1000 // _DAY_US
        if today > self._swept_day:
            self._swept_day, oldest = today, _DAY.pack(max(0, today - _KEPT_DAYS))
            for kind in (_STEP, _ASKED):
                changes.delete_range(kind, kind + oldest)
            self._limit.expire(_STEP, oldest, changes, out)
        self._limit.trim(changes, out)

    def restore_published(self, event: dict[str, Any], changes: Changes) -> None:
        """Do nothing: the steps tell which questions were asked."""

    def _wanted(self, step: Step) -> bool:
        return (not self._agents or step["agent"] in self._agents) and (
            not self._tenants or step["tenant"] in self._tenants
        )

    def _ask(self, step: Step, index: int, changes: Changes, out: Outputs) -> None:
        before = self._saved_step(step, index, changes)
        if before is None or is_erased(before):
            out.count(metrics.JUDGED.labels("unknown"))
            return
        users = sorted({one["user"] for one in (before, step) if one["user"] is not None})
        policy = self._policies.of(step["tenant"], step["agent"], users, before["occurred_at_us"])
        consent = strictest_of(policy.consent, before["consent"], step["consent"])
        if consent == "none" or policy.erased:
            out.count(metrics.JUDGED.labels("withheld"))
            return
        self._questions.append(_Question(before, step, consent))

    def _saved_step(self, step: Step, index: int, changes: Changes) -> Step | None:
        """Return a saved step of the same trajectory; None: there is none."""
        for key in (*_keys(step, index, trajectory_name), *_keys(step, index, _name_by_id)):
            record = changes.get(key)
            if record is None:
                continue
            saved = cast(Step, self._codec.decode(GOVERNED_STEPS, record))
            if is_erased(saved) or saved["tenant"] == step["tenant"]:
                return saved
        return None


def _feedback(before: Step, step: Step, score: float) -> Feedback:
    return new_feedback(
        event_id=derived_id(JOB, "next_state", _source(before), _source(step), tenant=step["tenant"]),
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


def _key(step: Step) -> bytes:
    return next(_keys(step, step["step_index"], trajectory_name))


def _keys(step: Step, index: int, name: Callable[[str, str], bytes]) -> Iterator[bytes]:
    """Yield the keys under which a step of the same trajectory may be saved, the newest day first."""
    trajectory = name(step["tenant"], step["trajectory_id"])
    for days_back in range(_KEPT_DAYS + 1):
        yield _STEP + _bucket(step, days_back) + trajectory + _INDEX.pack(index)


def _name_by_id(_: str, trajectory_id: str) -> bytes:
    """Return the name of a trajectory in earlier releases, in which an id belonged to one tenant."""
    return hashlib.blake2b(trajectory_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _digest(step: Step, index: int) -> bytes:
    """Return a key for the question; results of one source event under several policies share it."""
    question = f"{_source(step)}/{index}"
    if step["tenant"] != DEFAULT_TENANT:  # its keys stay those of earlier releases
        question = f"{step['tenant']}\0{question}"
    return hashlib.blake2b(question.encode("utf-8", "surrogatepass"), digest_size=16).digest()
