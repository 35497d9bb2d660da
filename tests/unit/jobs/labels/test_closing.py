"""Closing and reopening: a label is of everything known, and late steps wait for the next closure."""

from typing import Any

import pytest
from fold_harness import MemoryState
from hypothesis import given, settings
from hypothesis import strategies as st
from label_runs import FEEDBACK, LABELS, NOW_MS, STEPS, Run, governed
from stream_records import make_ending, make_feedback, make_steps

from stepstream.config import LabelSettings

CLOSURES = "closures"
HOUR_MS = 3_600_000
IDLE_MS = 600_000
"""Idle timeout of the runs."""


class Clock:
    """One partition of `label` whose decisions are read back, at the time that a test sets."""

    def __init__(self, **limits: Any) -> None:
        self.run, self.now_ms = Run(**limits), NOW_MS
        self.labels: list[dict[str, Any]] = []

    def feed(self, topic: str, *events: Any) -> list[dict[str, Any]]:
        """Fold one batch; return its labels."""
        outputs = self.run.feed([self.run.record(topic, event, at_ms=self.now_ms) for event in events])
        return self._take(outputs)

    def wait(self, ms: int) -> list[dict[str, Any]]:
        """Let time pass, and read back what is decided then; return the labels."""
        self.now_ms += ms
        outputs = self.run.tick(self.now_ms)
        decisions = [event for topic, _, event in outputs if topic == CLOSURES]
        labels = self._take(outputs)
        return labels + (self.feed(CLOSURES, *decisions) if decisions else [])

    def _take(self, outputs: list[tuple[str, str, Any]]) -> list[dict[str, Any]]:
        labels = [event for topic, _, event in outputs if topic == LABELS]
        self.labels += labels
        return labels


def steps_of(name: str, count: int, **fields: Any) -> list[Any]:
    return [governed(step) for step in make_steps(name, count, **fields)]


def test_steps_after_a_closure_without_steps_give_one_label_of_all_of_them() -> None:
    clock = Clock()
    clock.feed(FEEDBACK, governed(make_feedback("t")))
    assert clock.wait(IDLE_MS + 1) == []
    for step in steps_of("t", 5):
        assert clock.feed(STEPS, step) == []
    [label] = clock.wait(IDLE_MS + 1)
    assert (len(label["steps"]), label["complete"], label["trainable"], label["reward"]) == (5, True, True, 1.0)
    assert (label["revision"], label["closed_by"]) == (1, "idle")


def test_a_step_after_an_idle_closure_withdraws_the_label_until_the_next_closure() -> None:
    clock = Clock()
    steps = steps_of("t", 5)
    clock.feed(FEEDBACK, governed(make_feedback("t")))
    clock.feed(STEPS, *steps[:2])
    [first] = clock.wait(IDLE_MS + 1)
    assert (first["trainable"], first["closed_by"]) == (True, "idle")
    [withdrawn] = clock.feed(STEPS, steps[2])
    assert (withdrawn["revision"], withdrawn["trainable"], withdrawn["complete"]) == (2, False, False)
    assert (withdrawn["closed_by"], "reopened" in withdrawn["flags"]) == ("reopened", True)
    assert [clock.feed(STEPS, step) for step in steps[3:]] == [[], []]
    [whole] = clock.wait(IDLE_MS + 1)
    assert (whole["revision"], len(whole["steps"]), whole["trainable"]) == (3, 5, True)
    assert "reopened" not in whole["flags"]


def test_a_step_that_fills_a_gap_after_an_idle_closure_waits_for_the_next_closure() -> None:
    clock = Clock()
    first, second, third = steps_of("t", 3)
    clock.feed(STEPS, first, third)
    clock.feed(FEEDBACK, governed(make_feedback("t")))
    [partial] = clock.wait(IDLE_MS + 1)
    assert (partial["complete"], partial["trainable"]) == (False, False)
    [withdrawn] = clock.feed(STEPS, second)
    assert not withdrawn["trainable"]
    [whole] = clock.wait(IDLE_MS + 1)
    assert (len(whole["steps"]), whole["complete"], whole["trainable"]) == (3, True, True)


def test_steps_beyond_the_reported_end_wait_for_a_closure() -> None:
    clock = Clock()
    steps = steps_of("t", 5)
    clock.feed(STEPS, *steps[:2])
    [first] = clock.feed(FEEDBACK, governed(make_ending("t", 2)))
    assert first["trainable"]
    labels = [label for step in steps[2:] for label in clock.wait(60_000) + clock.feed(STEPS, step)]
    assert [(label["trainable"], label["closed_by"]) for label in labels] == [(False, "reopened")]
    [whole] = clock.wait(IDLE_MS + 1)
    assert (len(whole["steps"]), whole["trainable"], whole["closed_by"]) == (5, True, "idle")


def test_an_end_without_its_last_step_waits_for_steps_on_their_way() -> None:
    clock = Clock()
    end = governed(make_feedback("t", end="terminated"))
    steps = steps_of("t", 5)
    assert clock.feed(FEEDBACK, end) == []
    for step in steps[:4]:
        assert clock.wait(1_000) + clock.feed(STEPS, step) == []
    [label] = clock.wait(30_000)
    assert (len(label["steps"]), label["closed_by"], label["end"], label["trainable"]) == (
        4,
        "ended",
        "terminated",
        True,
    )
    [withdrawn] = clock.feed(STEPS, steps[4])
    assert not withdrawn["trainable"]
    assert clock.wait(31_000) == []
    [whole] = clock.wait(IDLE_MS)
    assert (len(whole["steps"]), whole["trainable"]) == (5, True)


def test_a_closure_of_an_earlier_release_covers_the_steps_up_to_its_index() -> None:
    clock = Clock()
    steps = steps_of("t", 3)
    clock.feed(FEEDBACK, governed(make_feedback("t")))
    clock.feed(STEPS, *steps[:2])
    clock.now_ms += IDLE_MS + 1
    [(_, _, decision)] = clock.run.tick(clock.now_ms)
    [label] = clock.feed(CLOSURES, decision | {"steps": None})
    assert label["trainable"]
    [withdrawn] = clock.feed(STEPS, steps[2])
    assert not withdrawn["trainable"]


def test_the_default_timeout_allows_a_pause_of_an_hour() -> None:
    assert LabelSettings().idle_timeout_s > 3_600


def test_the_idle_timeout_of_an_agent() -> None:
    clock = Clock(idle_timeouts={"support-eu": 4 * 3_600.0})
    for name, agent in (("t", "support-eu"), ("u", "agent")):
        clock.feed(STEPS, *steps_of(name, 1, agent=agent))
        clock.feed(FEEDBACK, governed(make_feedback(name)))
    assert [label["trajectory_id"] for label in clock.wait(IDLE_MS + 1)] == ["u"]
    assert clock.wait(HOUR_MS) == []
    assert [label["trajectory_id"] for label in clock.wait(3 * HOUR_MS)] == ["t"]


def test_a_reopened_trajectory_follows_consent_and_erasure() -> None:
    clock = Clock()
    steps = steps_of("t", 3, user="ann")
    clock.feed(FEEDBACK, governed(make_feedback("t")))
    clock.feed(STEPS, *steps[:2])
    clock.wait(IDLE_MS + 1)
    clock.feed(STEPS, steps[2])
    clock.run.rules.erase("ann")
    [erased] = clock.run.tick_labels()
    assert (erased["flags"], erased["revision"]) == (["erased"], 3)


def test_a_reopened_trajectory_expires_by_its_last_closure() -> None:
    clock = Clock()
    steps = steps_of("t", 2)
    clock.feed(STEPS, steps[0])
    clock.wait(IDLE_MS + 1)
    clock.wait(20 * 24 * HOUR_MS)
    clock.feed(STEPS, steps[1])
    clock.wait(IDLE_MS + 1)
    clock.wait(20 * 24 * HOUR_MS)
    assert any(key.startswith(b"s") for key in clock.run.state.content)
    clock.wait(12 * 24 * HOUR_MS)
    assert not any(key.startswith(b"s") for key in clock.run.state.content)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(0, 5)),
        st.tuples(st.just("feedback"), st.integers(0, 2)),
        st.tuples(st.just("end"), st.sampled_from([None, 2, 5])),
        st.tuples(st.just("wait"), st.sampled_from([1_000, 31_000, IDLE_MS + 1])),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_a_trainable_label_has_every_known_step_up_to_a_closure_or_the_reported_end(
    events: list[tuple[str, Any]],
) -> None:
    """And once all steps have come and time has passed, the last label has all of them."""
    clock, steps = Clock(), steps_of("t", 6)
    known: set[int] = set()
    for number, (kind, value) in enumerate(events):
        before = len(clock.labels)
        if kind == "step":
            known.add(value)
            clock.feed(STEPS, steps[value])
        elif kind == "feedback":
            clock.feed(FEEDBACK, governed(make_feedback("t", number=value)))
        elif kind == "end":
            clock.feed(
                FEEDBACK, governed(make_feedback("t", number=100 + number, end="terminated", last_step_index=value))
            )
        elif kind == "wait":
            clock.wait(value)
        else:
            clock.run.restart()
        for label in clock.labels[before:]:
            indices = {step["step_index"] for step in label["steps"]}
            assert indices == known
            if label["trainable"]:
                assert indices == set(range(max(known) + 1))
                # Only a decision, or an end that names this very step, makes a prefix whole: never the step itself.
                by_end = label["closed_by"] == "end" and any(k == "end" and v == max(known) for k, v in events)
                assert by_end or kind in ("wait", "feedback", "end")
    clock.feed(STEPS, *steps)
    clock.feed(FEEDBACK, governed(make_feedback("t", number=999)))
    clock.wait(IDLE_MS + 1)
    last = clock.labels[-1]
    assert (len(last["steps"]), last["complete"], last["trainable"]) == (6, True, True)
    assert [label["revision"] for label in clock.labels] == list(range(1, len(clock.labels) + 1))


@pytest.mark.parametrize("version", [0, 1])
def test_a_rebuilt_state_waits_for_a_reopened_trajectory(version: int) -> None:
    clock = Clock()
    steps = steps_of("t", 3)
    clock.feed(FEEDBACK, governed(make_feedback("t")))
    clock.feed(STEPS, *steps[:2])
    clock.now_ms += IDLE_MS + 1
    [(_, _, decision)] = clock.run.tick(clock.now_ms)
    clock.feed(CLOSURES, decision)
    clock.feed(STEPS, steps[2])
    rebuilt = Clock()
    rebuilt.run = Run(state=MemoryState())
    for label in clock.labels[: 1 + version]:
        rebuilt.run.restore(label)
    # Topic by topic, as a rebuild reads them.
    records = [(CLOSURES, decision), (FEEDBACK, governed(make_feedback("t"))), *((STEPS, step) for step in steps)]
    rebuilt.run.replay([rebuilt.run.record(topic, event, at_ms=NOW_MS) for topic, event in records])
    rebuilt.now_ms = NOW_MS
    # The review after a rebuild also withdraws the label if the owner before did not.
    *withdrawn, whole = rebuilt.wait(2 * IDLE_MS)
    assert [label["trainable"] for label in withdrawn] == [False] * (1 - version)
    assert (whole["revision"], len(whole["steps"]), whole["trainable"]) == (3, 3, True)
