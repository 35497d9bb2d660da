"""`reconcile` counts lost and duplicated records exactly; a redelivery is neither."""

from hypothesis import given
from hypothesis import strategies as st

from stepstream.demo.accounting import Label, Reconciliation, SentTrajectory, reconcile

SENT = [SentTrajectory("a", 4), SentTrajectory("b", 2)]
STORED = {"a": (4, 4), "b": (2, 2)}
LABELS = [Label("a", 1, "e1", 4), Label("b", 1, "e2", 2)]


def test_a_complete_run_has_no_losses_and_no_duplicates() -> None:
    assert reconcile(SENT, STORED, LABELS) == Reconciliation(6, 6, 2, 2, 0, 0)


def test_a_missing_step_row_is_lost() -> None:
    assert reconcile(SENT, {**STORED, "a": (3, 3)}, LABELS).lost == 1


def test_a_trajectory_without_a_row_loses_all_its_steps() -> None:
    assert reconcile(SENT, {"b": (2, 2)}, LABELS).lost == 4


def test_a_trajectory_without_a_label_is_lost() -> None:
    assert reconcile(SENT, STORED, LABELS[:1]).lost == 1


def test_a_step_that_its_label_lacks_is_lost() -> None:
    assert reconcile(SENT, STORED, [LABELS[0], Label("b", 1, "e2", 1)]).lost == 1


def test_a_second_row_of_one_step_is_a_duplicate() -> None:
    assert reconcile(SENT, {**STORED, "b": (2, 3)}, LABELS).duplicated == 1


def test_a_step_that_nobody_sent_is_a_duplicate() -> None:
    assert reconcile(SENT, {**STORED, "b": (3, 3)}, LABELS).duplicated == 1


def test_one_revision_under_two_ids_is_a_duplicate() -> None:
    assert reconcile(SENT, STORED, [*LABELS, Label("b", 1, "e9", 2)]).duplicated == 1


def test_a_new_revision_is_not_a_duplicate() -> None:
    assert reconcile(SENT, STORED, [*LABELS, Label("b", 2, "e3", 2)]).duplicated == 0


def test_a_cancelled_trajectory_needs_no_label_and_may_have_one_more_step() -> None:
    cancelled = [SentTrajectory("a", 3, ended=False, unsure=True)]
    assert reconcile(cancelled, {"a": (3, 3)}, []).lost == 0
    assert reconcile(cancelled, {"a": (4, 4)}, []) == Reconciliation(3, 4, 1, 0, 0, 0)
    assert reconcile(cancelled, {"a": (2, 2)}, []).lost == 1
    assert reconcile(cancelled, {"a": (5, 5)}, []).duplicated == 1


@given(st.lists(st.sampled_from(LABELS), max_size=6), st.randoms())
def test_redelivery_and_order_change_nothing(again: list[Label], random: object) -> None:
    labels = [*LABELS, *again]
    random.shuffle(labels)  # type: ignore[attr-defined]
    assert reconcile(SENT, STORED, labels) == reconcile(SENT, STORED, LABELS)
