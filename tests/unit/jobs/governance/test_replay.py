"""A replay governs as `govern` would now, publishes each result once, and is never less strict than before."""

from typing import Any, cast

import pytest
from fold_harness import FoldRun, MemoryState
from stream_records import make_feedback, make_steps

from stepstream.jobs.governance import JOB
from stepstream.jobs.governance.active_policy import ActivePolicies
from stepstream.jobs.governance.fold import GovernFold
from stepstream.jobs.governance.govern_step import govern_feedback
from stepstream.jobs.governance.replay import (
    GovernedIndex,
    PartitionReplay,
    ReplayBound,
    ReplayCounts,
    _offset_ranges,
    count_offsets,
    ranges_between,
)
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
        self.active = ActivePolicies(b"key", self.policies, self.consents)
        self.govern = FoldRun(JOB, None, MemoryState())  # type: ignore[arg-type]
        fold = GovernFold(self.active, dedup_days=7, max_future_s=300.0, now_us=lambda: NOW_US)
        self.govern.fold = fold
        self.raw: list[Any] = []
        self.governed: list[Any] = []

    def publish(self, *events: Any) -> None:
        """Publish steps and govern them."""
        records = [self.govern.record("steps", event) for event in events]
        self.raw += zip(records, events, strict=True)
        self.governed += [event for topic, _, event in self.govern.feed(records) if topic == "governed-steps"]

    def replay(self, topic: str = "steps", before: int = 0) -> ReplayCounts:
        """Replay all but the first `before` records, which are read for their contexts."""
        index, counts = GovernedIndex(), ReplayCounts()
        for event in self.governed:
            index.add(event)
        run = PartitionReplay(self.active, index, counts, NOW_US, 7)
        if topic == "steps":
            source = self.raw
        else:
            source = [(self.govern.record(topic, event), event) for event in self.governed]
        for number, (record, event) in enumerate(source):
            self.governed += [
                result
                for into, _, result in run.govern(record, event, count=number >= before)
                if into == "governed-steps"
            ]
        return counts


def steps(**fields: Any) -> list[Step]:
    return make_steps("t", 2, messages=[new_message(role="user", content="mail ann@example.com")], **fields)


def test_a_new_policy_version_gives_new_results_once() -> None:
    world = World()
    world.publish(*steps())
    assert world.replay() == ReplayCounts(read=2, known=2)
    world.policies["default"] = policy(3, "")
    counts = world.replay()
    assert (counts.read, counts.governed, counts.known, counts.rules) == (2, 2, 0, {"email": 2})
    sources = [step["event_id"] for step in steps()]
    assert [event["event_id"] for event in world.governed[2:]] == [derived_id(JOB, source, 3) for source in sources]
    assert [event["governed"]["policy_version"] for event in world.governed[2:]] == [3, 3]
    assert world.replay() == ReplayCounts(read=2, known=2)


def test_results_that_govern_published_under_the_version_are_skipped() -> None:
    world = World()
    world.policies["default"] = policy(3, "")
    world.publish(*steps())
    assert world.replay() == ReplayCounts(read=2, known=2)


def test_records_before_the_stretch_provide_contexts() -> None:
    world = World()
    clean = make_steps("t", 3)
    world.publish(*clean)
    world.policies["default"] = policy(1, "")
    counts = world.replay(before=2)
    assert (counts.read, counts.governed, counts.trainable) == (1, 1, 1)
    assert world.governed[-1]["prompt_shared_tokens"] == clean[2]["prompt_shared_tokens"]


def test_withdrawn_consent_withholds_and_copies_are_superseded() -> None:
    world = World()
    [first, second] = steps()
    world.publish(first, first, second)
    world.policies["default"] = policy(1, "")
    counts = world.replay()
    assert (counts.governed, counts.superseded) == (2, 1)
    world.policies["default"] = policy(2, "")
    world.consents["default/*/*"] = new_consent_change(event_id="c", occurred_at_us=0, tenant="default", consent="none")
    counts = world.replay()
    assert (counts.read, counts.governed, counts.withheld) == (3, 0, 2)


def test_replaying_a_governed_topic_keeps_earlier_redactions_and_flags() -> None:
    world = World()
    world.publish(*steps(), *make_steps("clean", 2))
    before = list(world.governed)
    world.policies["default"] = policy(1, "")
    world.replay()
    world.policies["default"] = policy(2, "")
    counts = world.replay("governed-steps")
    assert (counts.read, counts.governed, counts.superseded) == (8, 4, 4)
    newest = world.governed[-4:]
    for old, new in zip(before, newest, strict=True):
        stamp = new["governed"]
        assert (stamp["source_event_id"], stamp["policy_version"]) == (old["governed"]["source_event_id"], 2)
        assert set(old["governed"]["flags"]) <= set(stamp["flags"])
        assert stamp["redactions"] == old["governed"]["redactions"]
        assert stamp["trainable"] == old["governed"]["trainable"]
        assert new["messages"] == old["messages"]


def test_invalid_records_are_counted() -> None:
    world = World()
    [step, _] = steps()
    world.publish(step | {"loss_mask": [True]})
    assert world.replay() == ReplayCounts(read=1, refused=1)


def test_offset_ranges_between_two_times() -> None:
    begin, end = {("t", 0): (5, 90), ("t", 1): (7, 9)}, {("t", 0): (50, 90), ("t", 1): (3, 9)}
    between = ranges_between(begin, end)
    assert between == {("t", 0): (5, 50), ("t", 1): (7, 7)}
    assert count_offsets(between.values()) == 45


class FakeReader:
    """A reader of one partition; offset N was written at N milliseconds, and the oldest records are deleted."""

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
def test_a_stretch_is_bounded_by_times_or_offsets_and_read_from_its_lead_on(
    begin: ReplayBound, end: ReplayBound, read: tuple[int, int], first: int
) -> None:
    lead_ms = 20
    ranges = _offset_ranges(cast(LogReader, FakeReader()), "steps", begin, end, lead_ms)
    assert ranges == ({("steps", 0): read}, {0: first})


def test_feedback_is_replayed() -> None:
    world = World()
    run = PartitionReplay(world.active, GovernedIndex(), ReplayCounts(), NOW_US, 7)
    feedback = make_feedback("t", comment="write to ann@example.com")
    world.policies["default"] = policy(1, "")
    emitted = run.govern(world.govern.record("feedback", feedback), dict(feedback), count=True)
    results = [event for topic, _, event in emitted if topic == "governed-feedback"]
    assert [event["governed"]["redactions"] for event in results] == [{"email": 1}]


def test_feedback_keeps_the_person_that_govern_found() -> None:
    world, feedback, index = World(), make_feedback("t", comment="she churned"), GovernedIndex()
    index.add(govern_feedback(JOB, feedback | {"user": "ada"}, REDACTOR))
    run = PartitionReplay(world.active, index, ReplayCounts(), NOW_US, 7)
    world.policies["default"] = policy(3, "")
    [(_, _, result)] = run.govern(world.govern.record("feedback", feedback), dict(feedback), count=True)
    assert (result["user"], result["governed"]["policy_version"]) == ("ada", 3)
