"""The table against other records speaks of fields that exist, and leaves none of ours out."""

from collections import Counter

import pytest

from stepstream.schemas.loader import source
from stepstream.topics.comparison import comparison, section

RECORDS = ("Step", "Feedback", "LabeledStep", "LabeledTrajectory")


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
    only = text.partition("Only ours say:")[2]
    for row in comparison().rows:
        assert (f": {row.what}." in only) == (not row.elsewhere)
    # The record's reasons to exist (DESIGN.md, section 3): of OpenTelemetry, ADP and ATIF, none has them.
    asked = {"policy_spans", "loss_mask", "components", "group_id", "end", "fidelity", "consent"}
    for row in comparison().rows:
        if asked & set(row.fields) and row.record in ("Step", "LabeledStep"):
            assert not {"otel", "adp", "atif"} & row.elsewhere.keys(), row.fields
