"""The cost of a trajectory is linear in its length, and states of earlier releases are divided."""

from typing import Any

import orjson
import pytest
from fold_harness import MemoryChanges, MemoryState
from hypothesis import given
from hypothesis import strategies as st
from label_runs import FEEDBACK, NOW_MS, STEPS, Run, governed, successful_trajectory
from stream_records import make_ending, make_feedback, make_steps

from stepstream.jobs.labels.saved_head import unpack_head
from stepstream.jobs.runtime.index_set import IndexSet


class CountingState(MemoryState):
    """Counts the bytes that are written and the keys that are read."""

    written = 0
    reads = 0

    def write(self, changes: MemoryChanges) -> None:
        self.written += sum(len(key) + len(value or b"") for key, value in changes.overlay.items())
        super().write(changes)

    def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return super().get(key)


def cost(kind: str, count: int) -> tuple[int, int]:
    """Return the bytes written and keys read by a trajectory with one step or one feedback a batch."""
    state = CountingState()
    run = Run(state=state)
    steps = [governed(step) for step in make_steps("t", count, prompt_tokens=1, response_tokens=1)]
    for index, step in enumerate(steps):
        if kind == "steps":
            run.feed([run.record(STEPS, step)])
        else:
            run.feed(
                [run.record(FEEDBACK, governed(make_feedback("t", 1.0, number=index, name="n", step_index=index)))]
            )
    if kind == "feedback":
        run.feed([run.record(STEPS, step) for step in steps])
    [*_, (_, _, label)] = run.feed([run.record(FEEDBACK, governed(make_ending("t", count, number=count)))])
    assert (len(label["steps"]), label["trainable"]) == (count, True)
    return state.written, state.reads


@pytest.mark.parametrize("kind", ["steps", "feedback"])
def test_the_cost_is_linear_in_the_length(kind: str) -> None:
    short, long = cost(kind, 100), cost(kind, 400)
    assert long[0] < 4.4 * short[0]
    assert (short[1] < 8 * 100, long[1] < 8 * 400) == (True, True)


@given(st.lists(st.integers(0, 40)))
def test_an_index_set_is_a_set(indices: list[int]) -> None:
    found = IndexSet()
    for index in indices:
        found.add(index)
    assert list(found) == sorted(set(indices))
    assert (len(found), found.highest) == (len(set(indices)), max(indices, default=-1))
    assert [index in found for index in range(42)] == [index in indices for index in range(42)]
    free = [index for index in range(50) if index not in indices]
    assert [found.first_free(start) for start in range(42)] == [min(i for i in free if i >= n) for n in range(42)]
    assert list(IndexSet(found.ranges())) == list(found)
    assert all(end < begin for (_, end), (begin, _) in zip(found.ranges(), found.ranges()[1:], strict=False))


def first_format(state: MemoryState) -> MemoryState:
    """Return the state as the release before wrote it: one record for each trajectory."""
    old = MemoryState()
    for key, value in state.content.items():
        if key[:1] not in (b"e", b"f", b"g", b"h"):
            old.content[key] = value
        elif key[:1] == b"h":
            old.content[key] = _one_record(state, key[1:], orjson.loads(value))
    return old


def _one_record(state: MemoryState, name: bytes, head: dict[str, Any]) -> bytes:
    entries = {
        key[:1] + key[17:]: orjson.loads(v)
        for key, v in state.content.items()
        if key[1:17] == name and key[:1] in (b"e", b"f")
    }
    removed = ("format", "indices", "feedback_slots", "feedback_count", "closures", "step_arrived_ms", "withdrawn")
    record = {field: value for field, value in head.items() if field not in removed}
    record["closure"] = head["closures"][0][:3] if head["closures"] else None
    record["steps"] = {str(int.from_bytes(key[1:])): value for key, value in entries.items() if key[:1] == b"e"}
    feedback = {value["source_id"]: value for key, value in entries.items() if key[:1] == b"f"}
    record["early"] = {source: value.pop("early") for source, value in feedback.items() if "early" in value}
    record["feedback"] = {source: {k: v for k, v in value.items() if k != "slot"} for source, value in feedback.items()}
    return orjson.dumps(record)


def test_a_state_of_the_release_before_is_continued() -> None:
    """Closed, open, waiting for its steps, and closed by a decision."""
    run = Run()
    run.labels(*successful_trajectory("closed", user="ann"), *successful_trajectory("open")[:2])
    run.labels((FEEDBACK, governed(make_ending("early", 2))), *successful_trajectory("idle")[:2])
    old = Run(run.rules, first_format(run.state))
    assert any(b'"steps":{"0"' in value for value in old.state.content.values())
    [label] = old.labels((FEEDBACK, governed(make_feedback("closed", 0.0, number=1))))
    assert (label["revision"], label["success"], len(label["steps"])) == (2, False, 3)
    [label] = old.labels(*successful_trajectory("open")[2:])
    assert (label["revision"], label["trainable"]) == (1, True)
    [label] = old.labels(*((STEPS, governed(step)) for step in make_steps("early", 2)))
    assert label["trainable"]
    [(_, _, decision)] = old.tick(NOW_MS + 600_001)
    assert [label["closed_by"] for label in old.labels(("closures", decision))] == ["idle"]
    # A restart reads the divided heads.
    old.restart()
    assert old.labels((FEEDBACK, governed(make_feedback("closed", 0.0, number=1)))) == []


def test_a_head_of_a_later_release_is_refused() -> None:
    with pytest.raises(ValueError, match="format 3"):
        unpack_head(orjson.dumps({"format": 3, "trajectory_id": "t"}))
