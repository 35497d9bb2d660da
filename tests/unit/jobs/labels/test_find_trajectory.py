"""Test that states and decisions of releases that named trajectories by their id alone lose and double nothing.

`tests/data/states/label_by_id.json` is the state that such a release wrote (commit 39e74337), keys and values in hex:
of the tenants `ours` and `default` each an open trajectory of two steps (`open-…`) and a labelled one (`done-…`), and
the orphan `early` with feedback of `ours` and an end by `theirs`, and a hold by hand. `step_by_id.avsc` is the schema
of its steps.
"""

import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from fold_harness import MemoryState
from label_runs import FEEDBACK, NOW_MS, STEPS, Run, governed
from stream_records import make_ending, make_feedback, make_steps

from stepstream.jobs.labels import publish
from stepstream.topics.events import Curation, TrajectoryClosed, new_curation, new_trajectory_closed

STATE = Path(__file__).parents[3] / "data/states/label_by_id.json"
STEP_SCHEMA = STATE.parent / "step_by_id.avsc"
TENANTS = ["ours", "default"]
WRITTEN_BY = "label@2"
"""Version of the job that wrote the state."""


def earlier_run() -> Run:
    state = MemoryState()
    state.content = {bytes.fromhex(key): bytes.fromhex(value) for key, value in json.loads(STATE.read_bytes()).items()}
    run = Run(state=state)
    run.codec.earlier["Step"] = fastavro.parse_schema(json.loads(STEP_SCHEMA.read_bytes()))
    return run


def steps_of(name: str, tenant: str, count: int = 2, **fields: Any) -> list[tuple[str, Any]]:
    return [(STEPS, governed(step)) for step in make_steps(name, count, tenant=tenant, **fields)]


def end_of(name: str, tenant: str, steps: int = 2, value: float = 1.0, number: int = 0) -> tuple[str, Any]:
    return FEEDBACK, governed(make_ending(name, steps, value, tenant=tenant, number=number))


def decided_by_id(name: str, steps: int) -> TrajectoryClosed:
    """A closure of a release whose closures had no tenant."""
    return new_trajectory_closed(
        event_id="c", occurred_at_us=NOW_MS * 1000, trajectory_id=name, reason="idle", last_step_index=steps - 1,
        steps=steps, job=WRITTEN_BY,
    )  # fmt: skip


def held_by_id(name: str) -> Curation:
    return new_curation(event_id="h", occurred_at_us=1, trajectory_id=name, action="hold", reason="by_hand", by="ada")


@pytest.mark.parametrize("tenant", TENANTS)
def test_an_open_trajectory_of_an_earlier_release_goes_on(tenant: str) -> None:
    run, name = earlier_run(), f"open-{tenant}"
    assert run.labels(*steps_of(name, tenant, 3)) == []
    [label] = run.labels(end_of(name, tenant, 3))
    assert (label["tenant"], label["revision"], len(label["steps"]), label["complete"]) == (tenant, 1, 3, True)
    assert label["sequences"]


@pytest.mark.parametrize("tenant", TENANTS)
def test_a_label_of_an_earlier_release_is_published_again_only_for_news(
    tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "JOB", WRITTEN_BY)  # a new version of the job publishes each again, once
    run, name = earlier_run(), f"done-{tenant}"
    assert run.labels(*steps_of(name, tenant), end_of(name, tenant)) == []
    assert run.tick_labels() == []  # nor by the review at the start
    late = (FEEDBACK, governed(make_feedback(name, 0.5, number=7, tenant=tenant)))
    [label] = run.labels(late)
    assert (label["tenant"], label["revision"], label["reward"]) == (tenant, 2, 0.5)
    run.restart()
    assert run.labels(late) == []


@pytest.mark.parametrize("tenant", TENANTS)
def test_timeouts_of_an_earlier_release_still_pass(tenant: str) -> None:
    run, name = earlier_run(), f"open-{tenant}"
    closed = {event["trajectory_id"]: event for topic, _, event in run.tick(NOW_MS + 601_000) if topic == "closures"}
    assert closed[name]["tenant"] == tenant
    [label] = run.labels(("closures", closed[name]))
    assert (label["tenant"], label["closed_by"], label["revision"]) == (tenant, "idle", 1)


def test_another_tenant_may_use_a_name_that_an_earlier_release_saved() -> None:
    run = earlier_run()
    for name in ("open-ours", "done-ours"):
        [label] = run.labels(*steps_of(name, "theirs"), end_of(name, "theirs", value=0.0))
        assert (label["tenant"], label["revision"], label["reward"]) == ("theirs", 1, 0.0)
    [label] = run.labels(*steps_of("open-ours", "ours", 2)[1:], end_of("open-ours", "ours"))
    assert (label["tenant"], label["revision"], label["reward"]) == ("ours", 1, 1.0)


def test_early_feedback_of_an_earlier_release_goes_to_its_own_tenant() -> None:
    run = earlier_run()
    [label] = run.labels(*steps_of("early", "ours", 1, end="terminated"))
    assert (label["tenant"], label["reward"], label["flags"]) == ("ours", 0.25, ["held:by_hand"])
    [label] = run.labels(*steps_of("early", "theirs", 1))
    assert (label["tenant"], label["reward"], label["flags"]) == ("theirs", 1.0, [])


def test_a_decision_of_an_earlier_release_is_about_what_it_saved() -> None:
    run = earlier_run()
    [label] = run.labels(("closures", decided_by_id("open-ours", 2)))
    assert (label["tenant"], label["closed_by"]) == ("ours", "idle")
    [label] = run.labels(("curation", held_by_id("open-ours")))
    assert (label["tenant"], label["revision"], label["trainable"]) == ("ours", 2, False)


def decisions(run: Run) -> list[Any]:
    return [run.record("closures", decided_by_id("t", 2)), run.record("curation", held_by_id("t"))]


@pytest.mark.parametrize("steps_first", [True, False])
def test_decisions_of_an_earlier_release_are_read_again_for_the_first_tenant_of_the_id(steps_first: bool) -> None:
    run = Run()
    steps = [run.record(topic, event) for topic, event in (*steps_of("t", "ours"), *steps_of("t", "default"))]
    for records in (steps, decisions(run)) if steps_first else (decisions(run), steps):
        run.replay(records)
    run.restart()
    [label] = run.tick_labels()  # the review publishes what a rebuild did not
    assert (label["tenant"], label["closed_by"], label["flags"]) == (
        "ours",
        "idle",
        ["outcome:missing", "held:by_hand"],
    )
    [other] = run.labels(end_of("t", "default"))
    assert (other["tenant"], other["flags"], other["revision"]) == ("default", [], 1)


def test_a_decision_without_a_tenant_is_about_the_default_one() -> None:
    """A process of an earlier release may still decide beside this one."""
    run = Run()
    assert run.labels(*steps_of("t", "ours"), *steps_of("t", "default")) == []
    [label] = run.labels(("closures", decided_by_id("t", 2)))
    assert (label["tenant"], label["closed_by"]) == ("default", "idle")


def test_nothing_of_an_expired_trajectory_is_left() -> None:
    run = Run(keep_days=1)
    run.replay([run.record(topic, event) for topic, event in steps_of("t", "ours")])
    run.replay(decisions(run))
    for days in (3, 4):
        run.tick(NOW_MS + days * 86_400_000)
    assert {key[:1] for key in run.state.content} <= {b"r"}
