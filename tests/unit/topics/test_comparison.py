"""The table against other records speaks of fields that exist, and leaves none of ours out."""

import re
from collections import Counter

import pytest

from stepstream.schemas.loader import source
from stepstream.topics.codegen import comparison, section

RECORDS = ("Step", "Message", "ToolCall", "Sampling", "PolicySpan", "Feedback", "LabeledStep", "LabeledTrajectory")


@pytest.mark.parametrize("record", RECORDS)
def test_every_field_is_compared_once_or_named_as_plumbing(record: str) -> None:
    table = comparison()
    told = Counter(field for row in table.rows if row.record == record for field in row.fields)
    told.update(table.plumbing[record])
    assert told == Counter(field["name"] for field in source(record)["fields"])


def test_rows_are_about_the_records_that_are_compared() -> None:
    assert {row.record for row in comparison().rows} == set(RECORDS) == set(comparison().plumbing)


def test_what_only_ours_say_is_what_no_other_has_a_field_for() -> None:
    text = "\n".join(section())
    only = text.partition("Only ours say:")[2].partition("The other way round")[0]
    for row in comparison().rows:
        assert (f": {row.what}." in only) == (not row.elsewhere)
    # The record's reasons to exist (DESIGN.md, section 3): of OpenTelemetry, ADP and ATIF, none has them.
    asked = {"policy_spans", "loss_mask", "components", "group_id", "end", "fidelity", "consent"}
    for row in comparison().rows:
        if asked & set(row.fields) and row.record in ("Step", "LabeledStep"):
            assert not {"otel", "adp", "atif"} & row.elsewhere.keys(), row.fields


def test_what_others_say_is_told_with_where_ours_carry_it() -> None:
    table = comparison()
    back = "\n".join(section()).partition("The other way round")[2]
    assert {"otel", "adp", "atif", "areal", "lightning"} == {name for row in table.theirs for name in row.elsewhere}
    for row in table.theirs:
        assert f"| {row.what} | {row.ours} |" in back
        # A field of ours that is named there exists.
        named = set(re.findall(r"`([a-z_]+)`", row.ours))
        ours = {field["name"] for record in RECORDS for field in source(record)["fields"]}
        assert named <= ours | {"token", "traceparent", "upstreams"}, row.what
