"""Agents keep pace with the learner, and can never stand still for ever."""

from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.fleet.admission import STALL_S, Admission, capacity
from stepstream.services.fleet.versions import Lineage


def test_areals_capacity() -> None:
    assert capacity(per_version=8, max_ahead=2, version=3, accepted=30, running=10, most_running=16) == 6


def admitted(admission: Admission, most: int = 1000) -> int:
    groups = 0
    while groups < most and admission.admits():
        admission.start_group()
        groups += 1
    return groups


def test_work_for_the_next_version_and_those_ahead_is_let_in() -> None:
    admission = Admission(per_version=8, max_ahead=1, group_size=4)
    assert admitted(admission) == 4
    admission.advance(1, 0.0)
    assert admitted(admission) == 2


def test_nothing_is_let_in_ahead_of_a_synchronous_learner() -> None:
    admission = Admission(per_version=8, max_ahead=0, group_size=4)
    assert admitted(admission) == 2
    admission.advance(1, 0.0)
    assert admitted(admission) == 2


def test_a_lineage_that_is_taken_up_again_has_consumed_its_share() -> None:
    admission = Admission(per_version=8, max_ahead=1, group_size=4)
    for version in range(1, 6):
        admission.advance(version, 0.0)
    assert admitted(admission) == 4


def test_another_lineage_begins_afresh() -> None:
    admission = Admission(per_version=8, max_ahead=1, group_size=4)
    admission.advance(5, 0.0)
    admitted(admission)
    admission.advance(0, 1.0)
    assert admitted(admission) == 4


def test_groups_without_variance_leave_the_count() -> None:
    admission = Admission(per_version=8, max_ahead=1, group_size=2)
    admitted(admission)
    for outcome in (1.0, 1.0):
        admission.ended("same", outcome)
    for outcome in (1.0, 0.0):
        admission.ended("different", outcome)
    assert admitted(admission) == 1


def test_equal_outcomes_count_where_attempts_are_not_compared() -> None:
    admission = Admission(per_version=8, max_ahead=0, group_size=2, compares=False)
    admitted(admission)
    for outcome in (1.0, 1.0):
        admission.ended("same", outcome)
    assert admitted(admission) == 0


def test_a_group_that_the_learner_let_go_of_leaves_the_count_once() -> None:
    admission = Admission(per_version=8, max_ahead=0, group_size=2)
    admitted(admission)
    for group in ("stale", "used", "equal"):
        for outcome in (1.0, 1.0 if group == "equal" else 0.0):
            admission.ended(group, outcome)
    assert admitted(admission) == 1  # equal
    for group, trained in (("stale", False), ("used", True), ("used", False), ("unheard", False)) * 2:
        admission.decided(group, trained=trained)
    for _ in range(2):
        admission.decided("equal", trained=False)
    assert admitted(admission) == 1


def test_relief_grows_until_a_version_comes() -> None:
    admission = Admission(per_version=8, max_ahead=1, group_size=4)
    admitted(admission)
    relieved = []
    for _ in range(3):
        admission.relieve()
        relieved.append(admitted(admission))
    assert relieved == [1, 2, 4]
    admission.advance(1, 0.0)
    admitted(admission)
    admission.relieve()
    assert admitted(admission) == 1


def test_patience_follows_the_pace_of_versions() -> None:
    admission = Admission(per_version=8, max_ahead=1, group_size=4)
    assert admission.patience_s() == STALL_S
    admission.advance(1, 0.0)
    admission.advance(2, 60.0)
    assert admission.patience_s() > 60.0


@given(st.integers(1, 4), st.integers(0, 3), st.lists(st.booleans(), max_size=30))
def test_never_further_ahead_than_declared(groups: int, max_ahead: int, published: list[bool]) -> None:
    size = 4
    admission = Admission(per_version=groups * size, max_ahead=max_ahead, group_size=size)
    started = version = 0
    for comes in published:
        if comes and started > version * groups:  # the learner cannot publish what it has not been given
            version += 1
            admission.advance(version, 0.0)
        started += admitted(admission)
        assert started == (max_ahead + version + 1) * groups


def checkpoint(version: int, parent: int | None, model: str = "demo") -> dict[str, object]:
    return {"model": model, "version": version, "parent_version": parent}


def test_versions_are_counted_from_the_root_of_their_lineage() -> None:
    lineage = Lineage("demo")
    published = [checkpoint(0, None), checkpoint(1, 0), checkpoint(2, 1), checkpoint(9, None, "other")]
    again = [checkpoint(3, 1), checkpoint(4, None), checkpoint(5, 4)]
    assert [lineage.add(event) for event in published + again] == [0, 1, 2, None, 2, 0, 1]
