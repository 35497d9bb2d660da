"""At most the cap of each cluster is admitted, a group counts once, and a restart changes no decision."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_records import T0_US, trajectory

from stepstream.config import CurateSettings
from stepstream.jobs.curate import JOB, Curator
from stepstream.jobs.curation.near_duplicates import NearDuplicates
from stepstream.jobs.curation.signature import PERMUTATIONS
from stepstream.topics.events import Curation, new_policy

POLICY = new_policy(
    event_id="p", occurred_at_us=0, tenant="default", version=1, document="[near_duplicates]\ncap = 2\nwindow = 50\n"
)


CONFIG = CurateSettings()


def like(kind: int, differs: int = 0) -> list[int]:
    """A signature of a kind, with some places of its own."""
    rng = random.Random(kind)
    values = [rng.randrange(2**32) for _ in range(PERMUTATIONS)]
    for place in range(differs):
        values[place * 7] = random.randrange(2**32)
    return values


def found(window: NearDuplicates, *names: str, **fields: Any) -> list[str | None]:
    given: dict[str, Any] = {"group_id": None, "signature": like(1), "decided": None, "released": False} | fields
    return [window.add(name, **given) for name in names]


def test_copies_above_the_cap_return_their_cluster() -> None:
    window = NearDuplicates(2, 0.8, 100)
    first, second, third, fourth = found(window, "a", "b", "c", "d")
    assert (first, second) == (None, None)
    assert third == fourth is not None
    assert found(window, "e", signature=like(1, differs=10)) == [third]
    assert found(window, "f", signature=like(2)) == [None]
    assert found(window, "a", "c") == [None, None]  # known


def test_attempts_of_one_group_count_as_one() -> None:
    window = NearDuplicates(1, 0.8, 100)
    assert found(window, "a", "b", "c", group_id="g") == [None] * 3
    other = found(window, "d", "e", group_id="h")
    assert None not in other
    assert found(window, "f", group_id="g") == [None]


def test_copies_join_one_cluster_in_any_order() -> None:
    before = NearDuplicates(1, 0.8, 100)
    assert found(before, "a") == [None]
    (cluster,) = found(before, "b")
    for new in "cdefghij":
        again = NearDuplicates(1, 0.8, 100)
        assert found(again, new) == [None]
        assert found(again, "b", decided=cluster) == [None]
        assert None not in found(again, "a", "last"), new


def test_the_oldest_trajectories_leave_the_window() -> None:
    window = NearDuplicates(1, 0.8, 3)
    assert found(window, "a") == [None]
    for number in range(3):
        found(window, f"x{number}", signature=like(number + 5))
    assert found(window, "b") == [None]
    assert found(window, "c") != [None]


def test_a_released_trajectory_is_admitted_and_an_erased_one_frees_its_place() -> None:
    window = NearDuplicates(1, 0.8, 100)
    assert found(window, "a") == [None]
    assert found(window, "b", released=True) == [None]
    window.forget("a")
    assert found(window, "c") != [None]
    window.forget("b")
    window.forget("unknown")
    assert found(window, "d") == [None]


def label(name: str, kind: int = 1, **fields: Any) -> Any:
    values: dict[str, Any] = {"signature": like(kind), "group_id": None, "flags": [], "split": "train"} | fields
    return trajectory(name, **values)


class Policies(dict[str, Any]):
    """As the table."""


def test_a_decision_names_its_cluster_and_job_and_is_deterministic() -> None:
    one, two = (Curator(Policies(default=POLICY), CONFIG) for _ in range(2))
    decisions = [[curator.decide(label(name)) for name in "abcd"] for curator in (one, two)]
    assert decisions[0] == decisions[1]
    holds: list[Curation] = [decision for decision in decisions[0] if decision is not None]
    assert [(d["trajectory_id"], d["action"], d["by"]) for d in holds] == [("c", "hold", JOB), ("d", "hold", JOB)]
    assert holds[0]["reason"] == holds[1]["reason"]
    assert holds[0]["reason"].startswith("near_duplicate:")


@pytest.mark.parametrize("out", [{"consent": "analyse"}, {"flags": ["held:quality:empty"]}])
def test_a_trajectory_that_is_excluded_for_another_reason_is_not_counted(out: dict[str, Any]) -> None:
    curator = Curator(Policies(default=POLICY), CONFIG)
    assert [curator.decide(label(name, **out)) for name in "abc"] == [None] * 3
    assert [curator.decide(label(name)) for name in "de"] == [None] * 2
    back = curator.decide(label("a"))
    assert back is not None
    assert back["trajectory_id"] == "a"


def test_without_a_cap_no_trajectory_is_held() -> None:
    without = POLICY | {"document": "", "event_id": "q"}
    for policies in (Policies(), Policies(default=without)):
        curator = Curator(policies, CONFIG)
        assert [curator.decide(label(name)) for name in "abcd"] == [None] * 4
    curator = Curator(Policies({"*": POLICY}), CONFIG)
    assert [curator.decide(label(name, split="eval")) for name in "abcd"] == [None] * 4


@pytest.mark.parametrize(("config", "days"), [({"max_decisions": 10}, 0), ({"history_days": 2}, 1)])
def test_decisions_are_forgotten_by_age_and_cap_and_later_labels_repeat_them(config: dict[str, Any], days: int) -> None:
    curator = Curator(Policies(default=POLICY), CurateSettings.model_validate(config))
    day_us = 86_400_000_000
    holds = []
    for number in range(100):
        decision = curator.decide(label(f"t{number}", occurred_at_us=T0_US + number * day_us * days))
        holds += [decision] if decision is not None else []
        assert len(curator._decided) <= 10
    assert len(holds) > 90
    # A revision of a forgotten one, which left the window: `label` repeats the decision in its flags.
    assert curator.decide(label("t2", flags=[f"held:{holds[0]['reason']}"])) is None


@settings(max_examples=40)
@given(st.data())
def test_a_restart_holds_no_further_trajectories(data: st.DataObject) -> None:
    """Earlier decisions are restored; the labels may arrive in another order."""
    labels = [
        label(f"t{number}", data.draw(st.integers(1, 3)), group_id=data.draw(st.sampled_from([None, "g", "h"])))
        for number in range(data.draw(st.integers(1, 20)))
    ]
    before = Curator(Policies(default=POLICY), CONFIG)
    holds = [decision for one in labels if (decision := before.decide(one)) is not None]
    again = Curator(Policies(default=POLICY), CONFIG)
    for decision in holds:
        again.restore(decision)
    for one in data.draw(st.permutations(labels)):
        assert again.decide(one) is None
    # The law: of each kind, at most two groups are let in.
    admitted_labels = [one for one in labels if one["trajectory_id"] not in {d["trajectory_id"] for d in holds}]
    groups: dict[tuple[int, ...], set[str]] = {}
    for one in admitted_labels:
        groups.setdefault(tuple(one["signature"]), set()).add(one["group_id"] or one["trajectory_id"])
    assert all(len(admitted) <= 2 for admitted in groups.values())
