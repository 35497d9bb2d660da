"""Test that versions are counted from the root of their lineage."""

import pytest

from stepstream.services.fleet.learner_progress import Lineage, is_of_fleet


def checkpoint(version: int, parent: int | None, model: str = "demo") -> dict[str, object]:
    return {"model": model, "version": version, "parent_version": parent}


def test_versions_are_counted_from_the_root_of_their_lineage() -> None:
    lineage = Lineage("demo")
    published = [checkpoint(0, None), checkpoint(1, 0), checkpoint(2, 1), checkpoint(9, None, "other")]
    again = [checkpoint(3, 1), checkpoint(4, None), checkpoint(5, 4)]
    assert [lineage.add(event) for event in published + again] == [0, 1, 2, None, 2, 0, 1]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, True), ({"tenant": "other"}, False), ({"model": "other"}, False), ({"group_id": None}, False)],
)
def test_a_group_of_another_tenant_with_the_same_name_is_not_the_fleets(
    fields: dict[str, str | None], expected: bool
) -> None:
    decision = {"model": "demo", "tenant": "default", "group_id": "g"} | fields
    assert is_of_fleet(decision, "demo", "default") is expected
