"""Labels under rules: results governed anew, consent, erasure, decisions of people and jobs, quality."""

import hashlib
from typing import Any

import pytest
from fold_harness import MemoryChanges
from hypothesis import given, settings
from hypothesis import strategies as st
from label_runs import FEEDBACK, NOW_MS, STEPS, Run, governed, successful_trajectory
from stream_records import T0_US, make_ending, make_feedback, make_steps

from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicy
from stepstream.jobs.labels import review
from stepstream.jobs.labels.trajectory_state import TrajectoryState
from stepstream.topics.events import Curation, new_curation, new_message
from stepstream.topics.ids import derived_id

CURATION = "curation"


def decided(name: str, action: str, reason: str = "by_hand", at: int = 0) -> tuple[str, Curation]:
    identity = derived_id("test", name, action, reason, at)
    at_us = T0_US + 100_000_000 + at
    return CURATION, new_curation(
        event_id=identity, occurred_at_us=at_us, trajectory_id=name, action=action, reason=reason, by="somebody"
    )


def test_a_step_governed_under_a_newer_policy_gives_a_revision_and_an_older_one_does_not() -> None:
    run = Run()
    run.labels(*successful_trajectory("t"))
    first = make_steps("t", 3)[0]
    newer = governed(first, 2, trainable=False, flags=["redacted:name"])
    [label] = run.labels((STEPS, newer))
    assert (label["revision"], label["steps"][0]["event_id"]) == (2, newer["event_id"])
    assert (label["flags"], label["steps"][0]["trainable"]) == (["redacted:name"], False)
    assert run.labels((STEPS, governed(first, 1))) == []
    assert run.labels((STEPS, governed(first))) == []


def test_feedback_governed_anew_counts_once() -> None:
    run = Run()
    run.labels(*successful_trajectory("t"))
    [label] = run.labels((FEEDBACK, governed(make_ending("t", 3), 1)))
    assert (label["revision"], label["reward"], label["closed_by"]) == (2, 1.0, "end")
    assert run.labels((FEEDBACK, governed(make_ending("t", 3)))) == []


@settings(max_examples=60)
@given(st.data())
def test_the_event_of_a_step_does_not_depend_on_the_order(data: st.DataObject) -> None:
    one, retry, other = (make_steps("t", 1, seed=seed)[0] for seed in (1, 2, 3))
    retry = retry | {"error": "Timeout", "end": "terminated"}
    events = [governed(step, version) for step in (one, retry, other) for version in (0, 1, 2)]
    chosen = data.draw(st.lists(st.sampled_from(events), min_size=1, unique_by=lambda e: e["event_id"]))
    ending = governed(make_ending("t", 1))
    expected = min(chosen, key=lambda e: (e["error"] is not None, e["governed"]["source_event_id"]))
    same = [e for e in chosen if e["governed"]["source_event_id"] == expected["governed"]["source_event_id"]]
    expected = max(same, key=lambda e: e["governed"]["policy_version"])
    run = Run()
    labels = run.labels((FEEDBACK, ending))
    for event in chosen:
        labels += run.labels((STEPS, event))
    assert [step["event_id"] for step in labels[-1]["steps"]] == [expected["event_id"]]
    assert labels[-1]["success"] is True


def test_a_failed_attempt_is_superseded_and_a_second_source_is_a_dead_letter() -> None:
    for order in (1, -1):
        run = Run()
        steps = [make_steps("t", 1, seed=seed)[0] for seed in (1, 2)]
        failed = steps[0] | {"error": "Timeout"}
        records = [run.record(STEPS, governed(step)) for step in (failed, steps[1])][::order]
        assert run.feed(records) == []
        conflicting = run.record(STEPS, governed(steps[0]))
        outputs = run.feed([conflicting])
        [(topic, _, letter)] = outputs
        # The one with the larger source id is a dead letter, in any order of arrival.
        loser = max(steps, key=lambda step: step["event_id"])
        assert topic == "dead-letters"
        assert letter["value_sha256"] == hashlib.sha256(run.codec.encode(STEPS, governed(loser))).hexdigest()


def test_a_change_of_consent_revises_saved_labels() -> None:
    run = Run()
    run.labels(*successful_trajectory("t", user="ann"), *successful_trajectory("u", user="bob"))
    run.rules.change(ann="analyse")
    [label] = run.tick_labels()
    assert (label["trajectory_id"], label["revision"], label["consent"]) == ("t", 2, "analyse")
    assert (label["trainable"], label["sequences"], label["user"]) == (False, [], "ann")
    assert "consent:analyse" in label["flags"]
    run.rules.change(ann="train")
    [label] = run.tick_labels()
    assert (label["revision"], label["consent"], label["trainable"]) == (3, "train", True)
    run.restart()
    assert run.tick_labels() == []


def test_a_consent_review_proceeds_in_slices_and_resumes_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review, "_REVIEWED_PER_TICK", 5)
    run = Run()
    for number in range(12):
        run.labels(*successful_trajectory(f"t{number}", user="ann"))
    run.rules.change(ann="none")
    first = run.tick(NOW_MS)
    assert len(first) == 5
    run.restart()
    assert len(run.tick_labels()) == 7
    lookups = run.rules.lookups
    run.restart()
    assert run.tick_labels() == []
    assert run.rules.lookups == lookups


def test_a_rebuilt_state_publishes_missed_consent_changes() -> None:
    run = Run()
    events = successful_trajectory("t", user="ann")
    [label] = run.labels(*events)
    rebuilt = Run(run.rules)
    rebuilt.rules.change(ann="none")
    changes = MemoryChanges(rebuilt.state)
    rebuilt.fold.restore_published(label, changes)
    rebuilt.state.write(changes)
    rebuilt.replay([rebuilt.record(topic, event) for topic, event in events])
    [second] = rebuilt.tick_labels()
    assert (second["revision"], second["consent"], second["steps"][0]["tool_calls"]) == (2, "none", [])
    assert rebuilt.tick_labels() == []


def test_an_erasure_drops_the_steps_and_publishes_a_last_revision() -> None:
    run = Run()
    run.labels(
        *successful_trajectory("t", user="ann", response=new_message(role="assistant", content="Ann lives in Ulm"))
    )
    run.rules.erase("ann")
    [label] = run.tick_labels()
    assert (label["revision"], label["user"], label["flags"], label["trainable"]) == (2, None, ["erased"], False)
    assert (label["sequences"], label["signature"], label["consent"]) == ([], [], "none")
    assert len(label["steps"]) == 3
    assert not any(key.startswith(b"s") for key in run.state.content)
    assert not any(b"ann" in value or b"Ulm" in value for value in run.state.content.values())
    assert run.labels((FEEDBACK, governed(make_feedback("t", 0.0, number=1)))) == []
    run.rules.change()
    assert run.tick_labels() == []


def shared(name: str, *users: str | None) -> list[tuple[str, Any]]:
    """A whole trajectory, with the person whom each step names."""
    steps = [
        (topic, event | {"user": user})
        for (topic, event), user in zip(successful_trajectory(name), users, strict=False)
    ]
    return [*steps, successful_trajectory(name)[-1]]


def test_a_label_names_all_users_of_its_steps() -> None:
    run = Run()
    [label] = run.labels(*reversed(shared("t", None, "bob", "ann")))
    assert (label["user"], label["other_users"]) == ("bob", ["ann"])
    [label] = run.labels(*shared("u", "ann", "ann", ""))
    assert (label["user"], label["other_users"]) == ("ann", [])
    [label] = run.labels(*successful_trajectory("v"))
    assert (label["user"], label["other_users"]) == (None, [])
    # A second review publishes nothing.
    run.rules.change()
    assert run.tick_labels() == []


def test_a_label_of_an_earlier_release_with_one_user_is_revised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other content under the same id would be folded to nothing."""
    run, events = Run(), [*shared("t", "ann", "bob", "ann"), *successful_trajectory("u", user="ann")]
    digest = TrajectoryState.inputs_digest
    with monkeypatch.context() as then:
        told_less = lambda head, spec, signals, rules: digest(  # noqa: E731
            head, spec, signals, {kind: value for kind, value in rules.items() if kind != "shared"}
        )
        then.setattr(TrajectoryState, "inputs_digest", told_less)
        assert {label["revision"] for label in run.labels(*events)} == {1}
    run.restart()
    run.rules.change()
    [label] = run.tick_labels()
    assert (label["trajectory_id"], label["revision"], label["other_users"]) == ("t", 2, ["bob"])


def test_the_erasure_of_any_user_erases_a_label() -> None:
    for user in ("ann", "bob"):
        run = Run()
        run.labels(*shared("t", "ann", "bob", "ann"))
        run.rules.erase(user)
        [label] = run.tick_labels()
        assert (label["user"], label["other_users"], label["flags"]) == (None, [], ["erased"])


def test_a_trajectory_whose_key_is_destroyed_is_labelled_without_content() -> None:
    run = Run()
    erased = [
        (topic, event | {"seal_key": "k"} if topic == STEPS else event)
        for topic, event in successful_trajectory("t", messages=[])
    ]
    [label] = run.labels(*erased)
    assert (label["flags"], label["trainable"], label["sequences"]) == (["erased"], False, [])
    # As in a state rebuilt after the erasure: the last revision is known and not published again.
    rebuilt = Run()
    changes = MemoryChanges(rebuilt.state)
    rebuilt.fold.restore_published(label, changes)
    rebuilt.state.write(changes)
    assert rebuilt.labels(*erased) == []


def test_a_hold_and_a_release_give_revisions() -> None:
    run = Run()
    run.labels(*successful_trajectory("t"))
    [label] = run.labels(decided("t", "hold", "near_duplicate:abc"))
    assert (label["revision"], label["trainable"], label["sequences"]) == (2, False, [])
    assert label["flags"] == ["held:near_duplicate:abc"]
    assert run.labels(decided("t", "hold", "near_duplicate:abc", at=1)) == []
    [released] = run.labels(decided("t", "release", at=2))
    assert (released["revision"], released["trainable"], released["flags"]) == (3, True, ["released"])
    assert run.labels(decided("t", "hold", "near_duplicate:abc", at=1)) == []
    [again] = run.labels(decided("t", "hold", "names", at=3))
    assert again["flags"] == ["held:names", "released"]


def test_a_curation_decision_may_come_before_the_trajectory() -> None:
    run = Run()
    [label] = run.labels(decided("t", "hold"), *successful_trajectory("t"))
    assert (label["revision"], label["flags"]) == (1, ["held:by_hand"])


@settings(max_examples=50)
@given(
    st.permutations([("hold", "a", 0), ("hold", "b", 1), ("release", "x", 2), ("hold", "a", 3), ("release", "y", 1)])
)
def test_curation_decisions_count_by_time(order: list[tuple[str, str, int]]) -> None:
    run = Run()
    run.labels(*successful_trajectory("t"))
    labels = [label for action, reason, at in order for label in run.labels(decided("t", action, reason, at))]
    assert labels[-1]["flags"] == ["held:a", "released"]


@pytest.mark.parametrize("action", ["hold", "release"])
def test_a_release_does_not_give_consent(action: str) -> None:
    run = Run()
    run.labels(*successful_trajectory("t", consent="analyse"))
    [label] = run.labels(decided("t", action))
    assert (label["consent"], label["trainable"]) == ("analyse", False)


def test_quality_is_flagged_and_excluded_only_by_policy() -> None:
    run = Run()
    [label] = run.labels(*successful_trajectory("t", finish_reason="length"))
    assert (label["flags"], label["trainable"]) == (["quality:truncated"], True)
    run.rules.policy = TrajectoryPolicy(keep_out=("truncated",))
    [label] = run.labels(*successful_trajectory("u", finish_reason="length"))
    assert (label["flags"], label["trainable"]) == (["quality:truncated", "held:quality:truncated"], False)
    [label] = run.labels(decided("u", "release"))
    assert (label["flags"], label["trainable"]) == (["quality:truncated", "released"], True)


def test_a_signature_is_made_only_by_policy() -> None:
    run = Run()
    [plain] = run.labels(*successful_trajectory("t"))
    run.rules.policy = TrajectoryPolicy(signs=True)
    [one] = run.labels(*successful_trajectory("u"))
    [two] = run.labels(*successful_trajectory("v"))
    assert plain["signature"] == []
    assert one["signature"] == two["signature"]
    assert len(one["signature"]) == 128


def test_a_label_has_tool_results_and_branches() -> None:
    run = Run()
    steps = make_steps("t", 3)
    steps[1]["messages"] = [new_message(role="tool", tool_call_id="c0", content="42")]
    steps[2] |= {"prompt_shared_step": 0, "prompt_shared_messages": 2, "prompt_shared_tokens": 0}
    steps[2]["prompt_shared_digest"] = None
    events = [(STEPS, governed(step)) for step in steps]
    [label] = run.labels(*events, (FEEDBACK, governed(make_ending("t", 3))))
    assert [step["prompt_shared_step"] for step in label["steps"]] == [None, 0, 0]
    assert [[call["result"] for call in step["tool_calls"]] for step in label["steps"]] == [["42"], [None], [None]]
