"""Test that versions are counted from the root of their lineage."""

from stepstream.services.fleet.learner_progress import Lineage


def checkpoint(version: int, parent: int | None, model: str = "demo") -> dict[str, object]:
    return {"model": model, "version": version, "parent_version": parent}


def test_versions_are_counted_from_the_root_of_their_lineage() -> None:
    lineage = Lineage("demo")
    published = [checkpoint(0, None), checkpoint(1, 0), checkpoint(2, 1), checkpoint(9, None, "other")]
    again = [checkpoint(3, 1), checkpoint(4, None), checkpoint(5, 4)]
    assert [lineage.add(event) for event in published + again] == [0, 1, 2, None, 2, 0, 1]
