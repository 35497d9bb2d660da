"""Each row of the table in `docs/gateway.md` places a call as it says."""

from itertools import count
from pathlib import Path

import pytest

from stepstream.services.gateway.context.cache import ContextCache
from stepstream.services.gateway.context.endings import EndingFile
from stepstream.services.gateway.context.step_indices import StepIndexFile
from stepstream.services.gateway.context.tree import Trajectory, prompt_of
from stepstream.topics.events import Message, new_message, new_tool_call

DOCS = Path(__file__).parents[4] / "docs" / "gateway.md"
FIRST, SECOND, OTHER = "1" * 32, "2" * 32, "3" * 32
"""Trace ids."""
FIELDS = ("tenant", "key", "agent", "task", "group", "person", "environment", "split", "parent")
CALLER = ("acme", "key", "agent", "task", "group", "person", "lab", "train", "parent")


def table() -> list[tuple[str, ...]]:
    """Return the rows of the table under the heading `Placement`."""
    lines = DOCS.read_text().split("\n### Placement\n")[1].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(tuple(cell.strip() for cell in line.strip("|").split("|")))
    return rows


def user(text: str) -> Message:
    return new_message(role="user", content=text)


CALLED = new_message(
    role="assistant", content="I look", tool_calls=[new_tool_call(call_id="c1", name="get", arguments="{}")]
)
RESULT = new_message(role="tool", content="4", tool_call_id="c1")
REWRITTEN = new_message(role="assistant", content="I looked")
MESSAGES: dict[str, list[Message]] = {
    "begin": [user("task")],
    "repeat a recorded conversation": [user("task"), CALLED, RESULT],
    "repeat two equal ones": [user("task"), CALLED, RESULT],
    "repeat a first prompt whose calls failed": [user("failing")],
    "repeat the first prompt, then edited": [user("task"), REWRITTEN, user("and?")],
    "repeat a recorded tool call, before it edited": [user("summary"), CALLED, RESULT],
    "have other responses": [user("example"), new_message(role="assistant", content="so"), user("task")],
    "any": [user("anything")],
}
EXISTING = {
    "the response's",
    "that conversation's",
    "the one of the trace",
    "the newest without a continuation",
}
TRACES = {"none": "", "the same": FIRST, "the same as one": FIRST, "another": OTHER, "any": FIRST}


@pytest.mark.parametrize("row", table(), ids=lambda row: " / ".join(row))
def test_a_call_is_placed_as_the_table_says(row: tuple[str, ...]) -> None:
    names, messages, trace, caller, expected = row
    fresh = (f"00000000-0000-0000-0000-{number:012}" for number in count())
    cache = ContextCache(100, 1 << 20, lambda: next(fresh), StepIndexFile(), EndingFile())

    def recorded(request: list[Message], trace: str, response: Message | None) -> Trajectory:
        prompt = prompt_of(request)
        position = cache.place("acme", "", None, prompt, CALLER, trace)
        cache.extend(position, prompt, response, response_id="resp-1" if response else "")
        return position.trajectory

    fails = "failed" in messages
    first = recorded([user("failing" if fails else "task")], FIRST, None if fails else CALLED)
    newest = recorded([user("task")], SECOND, CALLED) if messages == "repeat two equal ones" else first
    existing = [first, newest]
    previous = cache.step_of_response("acme", "resp-1") if names == "a response" else None
    prompt = prompt_of(MESSAGES[messages], previous)
    # A cell names the fields of the caller that differ, and each alone decides.
    differing = [field for field in FIELDS if field in caller] if "differs" in caller else [""]
    for field in differing:
        scope = tuple("other" if name == field else value for name, value in zip(FIELDS, CALLER, strict=True))
        named = "named" if names == "a trajectory" else ""
        placed = cache.place(scope[0], named, None, prompt, scope, TRACES[trace]).trajectory
        if expected == "a new one":
            assert placed not in existing
        elif expected in ("the named one", "a new one with the trace's id"):
            assert placed not in existing
            assert placed.id == (named or OTHER)
        else:
            assert expected in EXISTING
            assert placed is (newest if expected == "the newest without a continuation" else first)
        existing.append(placed)


def test_every_field_of_a_caller_is_in_the_table() -> None:
    (named,) = [row[3] for row in table() if "differs" in row[3] and row[2] == "any"]
    assert {field for field in FIELDS if field in named} == set(FIELDS)
    assert len(table()) >= 14
