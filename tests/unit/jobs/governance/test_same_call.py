"""A call that the gateway and the agent's own OpenTelemetry both record is one step, in either order."""

from typing import Any, cast

import pytest
from fold_harness import FoldRun, MemoryState
from label_runs import Run
from stream_records import T0_US, make_steps

from stepstream.jobs.governance import JOB
from stepstream.jobs.governance.active_policy import ActivePolicies
from stepstream.jobs.governance.fold import GovernFold
from stepstream.jobs.governance.state import DAY_US
from stepstream.topics.events import Consent, Step, new_message, new_tool_call, new_trajectory_closed
from stepstream.topics.ids import derived_id

SPAN: dict[str, Any] = {
    "fidelity": "span",
    "prompt_token_ids": [],
    "prompt_shared_tokens": 0,
    "prompt_shared_digest": None,
    "prompt_shared_messages": 0,
    "response_token_ids": [],
    "response_logprobs": [],
    "policy_spans": [],
}


@pytest.fixture
def run() -> FoldRun:
    policies = ActivePolicies(b"key", {}, {})
    fold = GovernFold(policies, dedup_days=7, max_future_s=300.0, now_us=lambda: T0_US + 600_000_000)
    return FoldRun(JOB, fold, MemoryState())


def recorded(count: int = 3, **fields: Any) -> tuple[list[Step], list[Step]]:
    """Return the gateway's steps, and those of the spans of the same calls."""
    own = make_steps("t", count, counted_by="folder", **fields)
    for step in own:
        step["call_ids"] = [f"response:chatcmpl-0123456789-{step['step_index']}", f"span:trace/{step['step_index']}"]
    spans = [cast(Step, {**step, **SPAN, "counted_by": "otlp", "call_ids": step["call_ids"][:1]}) for step in own]
    for step in spans:
        step["event_id"] = derived_id("otlp@1", step["event_id"])
    spans[-1]["end"] = "terminated"
    calls = [new_tool_call(call_id="c0", name="get", arguments="{}", error="timeout", duration_ms=12.5)]
    spans[0]["response"] = new_message(role="assistant", content="I look it up.", tool_calls=calls)
    return own, spans


def govern(run: FoldRun, steps: list[Step]) -> list[tuple[str, Any]]:
    outputs = run.feed([run.record("steps", step) for step in steps])
    return [(topic, event) for topic, _, event in outputs if topic.startswith(("governed", "dead"))]


def orders(own: list[Step], spans: list[Step]) -> dict[str, list[Step]]:
    pairs = list(zip(own, spans, strict=True))
    return {
        "gateway first": [*own, *spans],
        "telemetry first": [*spans, *own],
        "in turns": [step for pair in pairs for step in pair],
        "in turns, telemetry first": [step for pair in pairs for step in reversed(pair)],
    }


@pytest.mark.parametrize("order", list(orders([], [])))
def test_two_records_of_each_call_are_one_trajectory(run: FoldRun, order: str) -> None:
    own, spans = recorded()
    outputs = govern(run, orders(own, spans)[order])
    *_, label = Run().labels(*outputs, ("closures", _closed()))
    assert [step["step_index"] for step in label["steps"]] == [0, 1, 2]
    assert (label["complete"], label["fidelity"]) == (True, "token")
    sources = [event["governed"]["source_event_id"] for _, event in outputs if event.get("fidelity") == "token"]
    assert sources == [step["event_id"] for step in own]
    assert not [topic for topic, _ in outputs if topic == "dead-letters"]
    assert label["end"] == "terminated"
    [call] = label["steps"][0]["tool_calls"]
    if order.endswith("telemetry first"):
        assert (call["error"], call["duration_ms"]) == ("timeout", 12.5)
    assert [step["response_tokens"] for step in label["steps"]] == [4, 4, 4]


def test_what_only_the_span_knows_becomes_feedback(run: FoldRun) -> None:
    own, spans = recorded()
    outputs = govern(run, [*own, *spans])
    feedback = [event for topic, event in outputs if topic == "governed-feedback"]
    assert [(f["name"], f["value"], f["comment"], f["tool_call_id"], f["end"]) for f in feedback[:2]] == [
        ("tool_duration_ms", 12.5, None, "c0", "open"),
        ("tool_error", None, "timeout", "c0", "open"),
    ]
    assert (feedback[-1]["name"], feedback[-1]["end"]) == ("end", "terminated")
    assert govern(run, spans) == []


def test_a_record_that_consent_withheld_is_not_learned_from_the_other(run: FoldRun) -> None:
    own, spans = recorded(consent="none")
    allowed = [Step(**{**step, "consent": "train"}) for step in spans]
    assert govern(run, [*own, *allowed]) == []


@pytest.mark.parametrize("order", list(orders([], [])))
@pytest.mark.parametrize("of", ["gateway", "telemetry"])
@pytest.mark.parametrize("consent", ["none", "analyse"])
def test_the_stricter_consent_of_two_records_counts_in_either_order(
    run: FoldRun, order: str, of: str, consent: Consent
) -> None:
    own, spans = recorded()
    for step in own if of == "gateway" else spans:
        step["consent"] = consent
    outputs = govern(run, orders(own, spans)[order])
    assert not [topic for topic, _ in outputs if topic == "dead-letters"]
    last = {event["step_index"]: event for topic, event in outputs if topic == "governed-steps"}
    assert all(step["consent"] == consent and not step["governed"]["trainable"] for step in last.values())
    assert set(last) in ([{0, 1, 2}] if consent == "analyse" else [{0, 1, 2}, set()])
    if not last:
        return
    if consent == "none":
        assert not any(step["messages"] or step["response"]["content"] for step in last.values())
    *_, label = Run().labels(*outputs, ("closures", _closed()))
    assert (label["consent"], label["trainable"], label["sequences"]) == (consent, False, [])


def test_a_step_after_a_withheld_one_does_not_count_its_context_as_clean(run: FoldRun) -> None:
    own, spans = recorded()
    own[0]["consent"] = "none"
    outputs = govern(run, [spans[0], own[0], own[1]])
    assert "redacted:prefix" in outputs[-1][1]["governed"]["flags"]


def test_calls_with_one_name_are_not_one_step_unless_the_kinds_differ(run: FoldRun) -> None:
    own, spans = recorded()
    for step in [*own, *spans]:
        step["call_ids"] = ["response:constant-of-a-server"]
    outputs = govern(run, own)
    assert [event["step_index"] for _, event in outputs] == [0, 1, 2]


@pytest.mark.parametrize("order", list(orders([], [])))
def test_an_id_that_all_responses_have_pairs_no_call_with_another(run: FoldRun, order: str) -> None:
    own, spans = recorded()
    for index, (step, span) in enumerate(zip(own, spans, strict=True)):
        step["call_ids"] = span["call_ids"] = ["response:constant-of-a-server", f"span:trace/{index}"]
    outputs = govern(run, orders(own, spans)[order])
    last = {event["step_index"]: event for topic, event in outputs if topic == "governed-steps"}
    assert [last[index]["governed"]["source_event_id"] for index in last] == [step["event_id"] for step in own]
    durations = [event["step_index"] for _, event in outputs if event.get("name") == "tool_duration_ms"]
    assert durations == ([] if order.endswith("telemetry first") else [0])


@pytest.mark.parametrize("at_us", [T0_US, T0_US // DAY_US * DAY_US - 1_500_000], ids=["within a day", "at midnight"])
def test_records_that_share_only_an_id_of_all_responses_stay_apart(run: FoldRun, at_us: int) -> None:
    own, spans = recorded(at_us=at_us)
    for step in [*own, *spans]:
        step["call_ids"] = ["response:constant-of-a-server"]
    outputs = govern(run, [*own, *spans])
    assert [topic for topic, _ in outputs] == ["governed-steps"] * 6


def _closed() -> Any:
    return new_trajectory_closed(
        event_id=derived_id("test", "closed"),
        occurred_at_us=T0_US + 60_000_000,
        trajectory_id="t",
        reason="idle",
        last_step_index=2,
        steps=3,
        job="label@1",
        tenant="default",
    )
