"""History governed anew: as govern would now, once, and never less strictly than before."""

from typing import Any, cast

import pytest
from fold_harness import FoldRun, MemoryState
from stream_records import make_feedback, make_steps

from stepstream.jobs.governance import JOB
from stepstream.jobs.governance.active_policy import ActivePolicies
from stepstream.jobs.governance.fold import GovernFold
from stepstream.jobs.governance.govern_step import govern_feedback
from stepstream.jobs.governance.replay import Known, Regovern, ReplayBound, Tally, _stretches, stretches_between, total
from stepstream.jobs.redaction import Redactor
from stepstream.jobs.runtime.log_reader import LogReader
from stepstream.topics.events import Policy, Step, new_consent_change, new_message, new_policy
from stepstream.topics.ids import derived_id

NOW_US = 1_770_000_000_000_000
REDACTOR = Redactor(b"key")


def policy(version: int, document: str) -> Policy:
    return new_policy(event_id=f"p{version}", occurred_at_us=0, tenant="default", version=version, document=document)


class World:
    """Policies, consents, and the two topics of steps."""

    def __init__(self) -> None:
        self.policies: dict[str, Any] = {}
        self.consents: dict[str, Any] = {}
        self.rulings = ActivePolicies(b"key", self.policies, self.consents)
        self.govern = FoldRun(JOB, None, MemoryState())  # type: ignore[arg-type]
        fold = GovernFold(self.rulings, dedup_days=7, max_future_s=300.0, now_us=lambda: NOW_US)
        self.govern.fold = fold
        self.raw: list[Any] = []
        self.governed: list[Any] = []

    def publish(self, *events: Any) -> None:
        """Agents tell something, and govern governs it."""
        records = [self.govern.record("steps", event) for event in events]
        self.raw += zip(records, events, strict=True)
        self.governed += [event for topic, _, event in self.govern.feed(records) if topic == "governed-steps"]

    def replay(self, topic: str = "steps", before: int = 0) -> Tally:
        """Governs all anew but the first `before` records, which are read for their contexts."""
        known, tally = Known(), Tally()
        for event in self.governed:
            known.note(event)
        run = Regovern(self.rulings, known, tally, NOW_US, 7)
        if topic == "steps":
            source = self.raw
        else:
            source = [(self.govern.record(topic, event), event) for event in self.governed]
        for number, (record, event) in enumerate(source):
            self.governed += [
                result
                for into, _, result in run.take(record, event, count=number >= before)
                if into == "governed-steps"
            ]
        return tally


def steps(**fields: Any) -> list[Step]:
    return make_steps("t", 2, messages=[new_message(role="user", content="mail ann@example.com")], **fields)


def test_a_new_policy_gives_new_results_once() -> None:
    world = World()
    world.publish(*steps())
    assert world.replay() == Tally(read=2, known=2)
    world.policies["default"] = policy(3, "")
    tally = world.replay()
    assert (tally.read, tally.governed, tally.known, tally.rules) == (2, 2, 0, {"email": 2})
    sources = [step["event_id"] for step in steps()]
    assert [event["event_id"] for event in world.governed[2:]] == [derived_id(JOB, source, 3) for source in sources]
    assert [event["governed"]["policy_version"] for event in world.governed[2:]] == [3, 3]
    assert world.replay() == Tally(read=2, known=2)


def test_what_govern_governs_under_the_new_version_is_known() -> None:
    world = World()
    world.policies["default"] = policy(3, "")
    world.publish(*steps())
    assert world.replay() == Tally(read=2, known=2)


def test_contexts_before_the_stretch_are_known() -> None:
    world = World()
    clean = make_steps("t", 3)
    world.publish(*clean)
    world.policies["default"] = policy(1, "")
    tally = world.replay(before=2)
    assert (tally.read, tally.governed, tally.trainable) == (1, 1, 1)
    assert world.governed[-1]["prompt_shared_tokens"] == clean[2]["prompt_shared_tokens"]


def test_consent_that_is_gone_withholds_and_copies_are_told_once() -> None:
    world = World()
    [first, second] = steps()
    world.publish(first, first, second)
    world.policies["default"] = policy(1, "")
    tally = world.replay()
    assert (tally.governed, tally.superseded) == (2, 1)
    world.policies["default"] = policy(2, "")
    world.consents["default/*/*"] = new_consent_change(event_id="c", occurred_at_us=0, tenant="default", consent="none")
    tally = world.replay()
    assert (tally.read, tally.governed, tally.withheld) == (3, 0, 2)


def test_a_governed_topic_is_governed_more_strictly_and_keeps_what_was_found() -> None:
    world = World()
    world.publish(*steps(), *make_steps("clean", 2))
    before = list(world.governed)
    world.policies["default"] = policy(1, "")
    world.replay()
    world.policies["default"] = policy(2, "")
    tally = world.replay("governed-steps")
    assert (tally.read, tally.governed, tally.superseded) == (8, 4, 4)
    newest = world.governed[-4:]
    for old, new in zip(before, newest, strict=True):
        stamp = new["governed"]
        assert (stamp["source_event_id"], stamp["policy_version"]) == (old["governed"]["source_event_id"], 2)
        assert set(old["governed"]["flags"]) <= set(stamp["flags"])
        assert stamp["redactions"] == old["governed"]["redactions"]
        assert stamp["trainable"] == old["governed"]["trainable"]
        assert new["messages"] == old["messages"]


def test_what_was_refused_is_counted() -> None:
    world = World()
    [step, _] = steps()
    world.publish(step | {"loss_mask": [True]})
    assert world.replay() == Tally(read=1, refused=1)


def test_stretches() -> None:
    begin, end = {("t", 0): (5, 90), ("t", 1): (7, 9)}, {("t", 0): (50, 90), ("t", 1): (3, 9)}
    between = stretches_between(begin, end)
    assert between == {("t", 0): (5, 50), ("t", 1): (7, 7)}
    assert total(between.values()) == 45


class Timed:
    """A reader of one partition in which offset N was written at N milliseconds; the oldest ones are gone."""

    low, high = 10, 90

    def since(self, topic: str, timestamp_ms: int) -> dict[tuple[str, int], tuple[int, int]]:
        return {(topic, 0): (min(max(self.low, timestamp_ms), self.high), self.high)}


@pytest.mark.parametrize(
    ("begin", "end", "read", "first"),
    [
        (ReplayBound(), ReplayBound(), (10, 90), 10),
        (ReplayBound(offset=40), ReplayBound(offset=60), (10, 60), 40),
        (ReplayBound(offset=5), ReplayBound(offset=500), (10, 90), 10),
        (ReplayBound(offset=500), ReplayBound(), (10, 90), 90),
        (ReplayBound(time_ms=40), ReplayBound(time_ms=60), (20, 60), 40),
        (ReplayBound(time_ms=40), ReplayBound(offset=60), (20, 60), 40),
        (ReplayBound(offset=40), ReplayBound(time_ms=60), (10, 60), 40),
        (ReplayBound(time_ms=60), ReplayBound(time_ms=30), (40, 40), 60),
    ],
)
def test_a_stretch_is_between_times_or_offsets_and_what_comes_before_is_read_too(
    begin: ReplayBound, end: ReplayBound, read: tuple[int, int], first: int
) -> None:
    lead_ms = 20
    found = _stretches(cast(LogReader, Timed()), "steps", begin, end, lead_ms)
    assert found == ({("steps", 0): read}, {0: first})


def test_feedback_is_governed_anew_too() -> None:
    world = World()
    run = Regovern(world.rulings, Known(), Tally(), NOW_US, 7)
    feedback = make_feedback("t", comment="write to ann@example.com")
    world.policies["default"] = policy(1, "")
    given = run.take(world.govern.record("feedback", feedback), dict(feedback), count=True)
    results = [event for topic, _, event in given if topic == "governed-feedback"]
    assert [event["governed"]["redactions"] for event in results] == [{"email": 1}]


def test_feedback_stays_about_whom_govern_found_by_its_trajectory() -> None:
    world, feedback, known = World(), make_feedback("t", comment="she churned"), Known()
    known.note(govern_feedback(JOB, feedback | {"user": "ada"}, REDACTOR))
    run = Regovern(world.rulings, known, Tally(), NOW_US, 7)
    world.policies["default"] = policy(3, "")
    [(_, _, result)] = run.take(world.govern.record("feedback", feedback), dict(feedback), count=True)
    assert (result["user"], result["governed"]["policy_version"]) == ("ada", 3)
