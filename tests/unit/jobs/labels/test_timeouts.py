"""Labels that wait for a required component: partial at once, whole when it comes, given up by an event."""

from typing import Any

from fold_harness import FoldRun, MemoryState
from hypothesis import given, settings
from hypothesis import strategies as st
from label_runs import label_settings
from stream_records import as_governed, make_ending, make_feedback, make_steps

from stepstream.jobs.labels import JOB
from stepstream.jobs.labels.fold import LabelFold
from stepstream.jobs.rewards.spec import RewardSpec, VersionedSpec, parse_spec

NOW_MS = 1_760_000_100_000
SPEC = """
[[component]]
name = "outcome"
feedback = "outcome"
outcome = true
[[component]]
name = "tests"
feedback = "tests"
source = "test"
required = true
wait_s = 60
final_after_s = 600
"""


class Versions:
    """A specification that can be changed."""

    def __init__(self, spec: RewardSpec) -> None:
        self.declared = VersionedSpec(spec, 1)

    def of(self, environment: str, agent: str) -> VersionedSpec:
        assert (environment, agent) == ("env", "agent")
        return self.declared

    def fingerprint(self) -> int:
        return self.declared.version - 1

    def put(self, text: str) -> None:
        self.declared = VersionedSpec(parse_spec(text), self.declared.version + 1)


def waiting_run(state: MemoryState | None = None) -> tuple[FoldRun, Versions]:
    state = state or MemoryState()
    versions = Versions(parse_spec(SPEC))
    run = FoldRun(JOB, None, state)  # type: ignore[arg-type]
    run.fold = LabelFold(state, versions, run.codec, settings=label_settings())  # type: ignore[arg-type]
    return run, versions


def feed_feedback(run: FoldRun, *feedback: Any, after_s: float = 0.0) -> list[Any]:
    at_ms = NOW_MS + int(after_s * 1000)
    return run.feed([run.record("governed-feedback", as_governed(one), at_ms=at_ms) for one in feedback])


def ended(run: FoldRun) -> dict[str, Any]:
    """The first label of a trajectory that ended without its tests."""
    run.feed([run.record("governed-steps", as_governed(step)) for step in make_steps("t", 2)])
    [(_, _, label)] = feed_feedback(run, make_ending("t", 2))
    return dict(label)


def verdict(value: float | None = 1.0, number: int = 1, **fields: Any) -> Any:
    return make_feedback("t", value, name="tests", source="test", number=number, **fields)


def test_an_unproven_source_does_not_end_a_wait_and_is_flagged() -> None:
    run, _ = waiting_run()
    ended(run)
    [(_, _, still)] = feed_feedback(run, verdict(producer="gateway/1"), after_s=1)
    assert (still["pending"], still["trainable"], still["reward"]) == (["tests"], False, 1.0)
    assert still["flags"] == ["waiting:tests", "unproven_source:tests"]
    [(_, _, complete)] = feed_feedback(run, verdict(number=2), after_s=2)
    assert (complete["pending"], complete["reward"], complete["flags"]) == ([], 2.0, ["unproven_source:tests"])


def test_a_label_is_partial_until_required_components_come() -> None:
    run, _ = waiting_run()
    partial = ended(run)
    assert (partial["pending"], partial["trainable"], partial["reward"]) == (["tests"], False, 1.0)
    assert partial["flags"] == ["waiting:tests"]
    assert (partial["success"], len(partial["steps"])) == (True, 2)
    [(_, _, complete)] = feed_feedback(run, verdict(), after_s=59)
    assert (complete["revision"], complete["pending"], complete["trainable"], complete["reward"]) == (2, [], True, 2.0)
    assert run.tick(NOW_MS + 1_000_000) == []


def test_the_decision_to_stop_waiting_takes_effect_when_read_back() -> None:
    run, _ = waiting_run()
    ended(run)
    assert run.tick(NOW_MS + 59_000) == []
    # A job that starts anew knows that something is waited for.
    run, _ = waiting_run(run.state)
    [(topic, key, decision)] = run.tick(NOW_MS + 61_000)
    assert (topic, key, decision["reason"], decision["components"]) == ("closures", "t", "waited", ["tests"])
    assert run.tick(NOW_MS + 62_000) == []  # decided once
    [(_, _, label)] = run.feed([run.record("closures", decision)])
    assert (label["revision"], label["pending"], label["trainable"]) == (2, [], True)
    assert (label["flags"], label["closed_by"], label["occurred_at_us"]) == (
        ["missing:tests"],
        "end",
        decision["occurred_at_us"],
    )
    # Later feedback still counts until the component is final.
    [(_, _, late)] = feed_feedback(run, verdict(), after_s=599)
    assert (late["revision"], late["reward"], late["flags"]) == (3, 2.0, [])
    assert feed_feedback(run, verdict(0.0, 2), after_s=601) == []
    [(_, _, back)] = feed_feedback(run, make_feedback("t", 0.0, number=3), after_s=602)
    assert (back["revision"], back["reward"]) == (4, 1.0)
    assert {term["name"]: term["final"] for term in back["steps"][1]["components"]} == {"outcome": False, "tests": True}


def test_a_lost_decision_is_repeated() -> None:
    run, _ = waiting_run()
    ended(run)
    [(_, _, first)] = run.tick(NOW_MS + 61_000)
    [(_, _, again)] = run.tick(NOW_MS + 662_000)
    assert first["event_id"] == again["event_id"]


def test_a_retraction_gives_a_revision_and_a_new_wait() -> None:
    run, _ = waiting_run()
    ended(run)
    feed_feedback(run, verdict())
    [(_, _, taken_back)] = feed_feedback(run, verdict(None, 2, retracts=verdict()["event_id"]))
    assert (taken_back["revision"], taken_back["reward"], taken_back["pending"]) == (3, 1.0, ["tests"])
    [(_, _, decision)] = run.tick(NOW_MS + 61_000)
    assert decision["components"] == ["tests"]


def test_a_new_specification_version_revises_saved_labels() -> None:
    run, versions = waiting_run()
    first = ended(run)
    assert (first["reward_spec_version"], first["reward_spec"]) == (1, versions.declared.spec.identity())
    assert first["gamma"] == 1.0
    versions.put(SPEC.replace("outcome = true", "outcome = true\nweight = 3.0"))
    [(topic, _, second)] = run.tick(NOW_MS + 1_000)
    assert (topic, second["revision"], second["reward"], second["pending"]) == (
        "labeled-trajectories",
        2,
        3.0,
        ["tests"],
    )
    assert (second["reward_spec_version"], second["reward_spec"]) == (2, versions.declared.spec.identity())
    assert run.tick(NOW_MS + 2_000) == []
    versions.put("")
    [(_, _, third)] = run.tick(NOW_MS + 3_000)
    assert (third["revision"], third["pending"], third["trainable"]) == (3, [], True)
    assert run.tick(NOW_MS + 100_000) == []  # nothing is waited for any more


@settings(max_examples=40)
@given(st.data())
def test_the_last_label_does_not_depend_on_the_order(data: st.DataObject) -> None:
    """Order, redelivery and batches change how often a label is revised, not how it ends: the log's times decide."""
    reference, _ = waiting_run()
    ended(reference)
    [(_, _, decision)] = reference.tick(NOW_MS + 61_000)
    records = [
        *(("governed-steps", as_governed(step), 0) for step in make_steps("t", 2)),
        ("governed-feedback", as_governed(make_ending("t", 2)), 0),
        ("governed-feedback", as_governed(verdict()), 70),
        ("governed-feedback", as_governed(verdict(0.0, 2)), 700),
        ("governed-feedback", as_governed(make_feedback("t", 0.5, number=3)), 800),
        ("closures", decision, 61),
    ]
    order = data.draw(st.permutations(records)) + data.draw(st.lists(st.sampled_from(records), max_size=3))
    run, _ = waiting_run()
    outputs = []
    while order:
        batch, order = order[: (cut := data.draw(st.integers(1, len(order))))], order[cut:]
        outputs += run.feed([run.record(topic, event, at_ms=NOW_MS + at * 1000) for topic, event, at in batch])
    last = [event for topic, _, event in outputs if topic == "labeled-trajectories"][-1]
    assert (last["reward"], last["pending"], last["flags"], last["trainable"]) == (1.5, [], [], True)
    assert {term["name"]: (term["value"], term["final"]) for term in last["steps"][1]["components"]} == {
        "outcome": (0.5, False),
        "tests": (1.0, True),
    }


def test_a_component_that_becomes_required_after_its_wait_has_ended_is_given_up() -> None:
    run, versions = waiting_run()
    versions.put(SPEC.replace("required = true\nwait_s = 60\n", ""))
    run.tick(NOW_MS)
    assert ended(run)["pending"] == []
    versions.put(SPEC)
    [(_, _, label)] = run.tick(NOW_MS + 61_000)
    assert label["flags"] == ["waiting:tests"]
    [(topic, _, decision)] = run.tick(NOW_MS + 61_250)
    assert (topic, decision["components"]) == ("closures", ["tests"])
