"""The committed events module and protocol page are current, and the comparison covers every field."""

import re
from collections import Counter
from pathlib import Path

import pytest

import stepstream.topics.events as events
from stepstream.schemas.loader import source
from stepstream.topics.codegen import comparison, comparison_section, protocol_page, python_module

ROOT = Path(__file__).parents[3]
RECORDS = ("Step", "Message", "ToolCall", "Sampling", "PolicySpan", "Feedback", "LabeledStep", "LabeledTrajectory")


def test_events_module_is_current() -> None:
    assert Path(events.__file__).read_text() == python_module(), "run `stepstream schemas generate`"


def test_protocol_page_is_current() -> None:
    assert (ROOT / "docs" / "protocol.md").read_text() == protocol_page(), "run `stepstream schemas generate`"


def test_constructors_fill_in_defaults_without_sharing_lists() -> None:
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


@pytest.mark.parametrize("record", RECORDS)
def test_every_field_is_compared_once_or_listed_as_plumbing(record: str) -> None:
    table = comparison()
    listed = Counter(field for row in table.rows if row.record == record for field in row.fields)
    listed.update(table.plumbing[record])
    assert listed == Counter(field["name"] for field in source(record)["fields"])


def test_rows_cover_the_compared_records() -> None:
    assert {row.record for row in comparison().rows} == set(RECORDS) == set(comparison().plumbing)


def test_fields_without_a_counterpart_are_listed() -> None:
    text = "\n".join(comparison_section())
    only = text.partition("Only Stepstream has:")[2].partition("Fields of other records")[0]
    for row in comparison().rows:
        assert (f": {row.meaning}." in only) == (not row.elsewhere)
    # OpenTelemetry, ADP and ATIF have none of these.
    unique = {"policy_spans", "loss_mask", "components", "group_id", "end", "fidelity", "consent"}
    for row in comparison().rows:
        if unique & set(row.fields) and row.record in ("Step", "LabeledStep"):
            assert not {"otel", "adp", "atif"} & row.elsewhere.keys(), row.fields


def test_foreign_fields_name_existing_fields_of_stepstream() -> None:
    table = comparison()
    back = "\n".join(comparison_section()).partition("Fields of other records")[2]
    assert {"otel", "adp", "atif", "areal", "lightning"} == {name for row in table.foreign for name in row.elsewhere}
    for row in table.foreign:
        assert f"| {row.meaning} | {row.stepstream} |" in back
        named = set(re.findall(r"`([a-z_]+)`", row.stepstream))
        own = {field["name"] for record in RECORDS for field in source(record)["fields"]}
        assert named <= own | {"token", "traceparent", "upstreams"}, row.meaning
