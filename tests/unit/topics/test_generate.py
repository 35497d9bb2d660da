"""What is generated from the schemas is what is committed: never two truths."""

from pathlib import Path

import stepstream.topics.events as events
from stepstream.topics.codegen import protocol_page, python_module

ROOT = Path(__file__).parents[3]


def test_events_module_is_current() -> None:
    assert Path(events.__file__).read_text() == python_module(), "run `stepstream schemas generate`"


def test_protocol_page_is_current() -> None:
    assert (ROOT / "docs" / "protocol.md").read_text() == protocol_page(), "run `stepstream schemas generate`"


def test_constructors_fill_in_defaults_and_share_no_lists() -> None:
    first = events.new_message(role="user", content="a")
    second = events.new_message(role="user", content="b")
    assert first == {
        "role": "user",
        "content": "a",
        "tool_calls": [],
        "tool_call_id": None,
        "name": None,
        "reasoning": None,
    }
    assert first["tool_calls"] is not second["tool_calls"]
