"""Feedback counts by name, source, proof and arrival time."""

from typing import Any

import orjson
import pytest
from reward_cases import signal
from stream_records import make_steps

from stepstream.jobs.labels.saved_head import unpack_head
from stepstream.jobs.rewards.counted_feedback import CountedFeedback, count_feedback, is_too_late
from stepstream.jobs.rewards.spec import RewardSpec, parse_spec
from stepstream.jobs.rewards.terms import components, success

PAID = "[[component]]\nname = 'quality'\nfeedback = 'quality'\n"
STRANGERS = ("otlp-gateway/0.1.0", "gateway/0.1.0", "sdk/0.1.0", "import/adp", "verifying/1", "me", "")


def verdict(value: float | None, source: str, producer: str | None, **fields: Any) -> dict[str, Any]:
    number = f"{source}/{producer}/{value}"
    return signal("quality", value, number, source=source, producer=producer) | fields


def paid(spec: RewardSpec, counted: CountedFeedback) -> dict[str, float]:
    [terms] = components(spec, make_steps("t", 1), counted, complete=True)
    return {term["name"]: term["value"] for term in terms}


@pytest.mark.parametrize("producer", STRANGERS)
@pytest.mark.parametrize("source", ["judge", "verifier", "test", "prm"])
@pytest.mark.parametrize("declared", [True, False])
def test_an_unproven_verdict_does_not_count(producer: str, source: str, declared: bool) -> None:
    """Neither where the specification asks for that source, nor where it takes anybody."""
    spec = parse_spec(PAID + (f"source = '{source}'\n" if declared else ""))
    counted = count_feedback(spec, [verdict(1.0, source, producer)], 0)
    assert paid(spec, counted) == {}
    assert (counted.unproven_source, counted.wrong_source) == (("quality",), ())
    # An earlier proven verdict still counts.
    counted = count_feedback(spec, [verdict(0.5, source, "verify/1"), verdict(1.0, source, producer, at=9)], 0)
    assert paid(spec, counted) == {"quality": 0.5}


@pytest.mark.parametrize(
    ("producer", "believed"),
    [
        ("verify/1", {"judge", "verifier", "test", "prm"}),
        ("judge/1", {"judge"}),
        ("verdicts/ab12", {"verifier", "test", "prm"}),
    ],
)
def test_producers_may_speak_only_for_their_sources(producer: str, believed: set[str]) -> None:
    """Nobody but our jobs for a judge: they alone know whether it is calibrated."""
    for source in ("judge", "verifier", "test", "prm"):
        spec = parse_spec(PAID + f"source = '{source}'\n")
        assert bool(paid(spec, count_feedback(spec, [verdict(1.0, source, producer)], 0))) == (source in believed)


@pytest.mark.parametrize("declared", ["source = 'person'\n", ""])
def test_a_persons_verdict_counts_from_the_console_only(declared: str) -> None:
    spec = parse_spec(PAID + declared)
    for producer in (*STRANGERS, "judge/1", "verdicts/ab12"):
        counted = count_feedback(spec, [verdict(1.0, "person:ada", producer)], 0)
        assert (paid(spec, counted), counted.unproven_source) == ({}, ("quality",))
    assert paid(spec, count_feedback(spec, [verdict(1.0, "person:ada", "console/0.1.0")], 0)) == {"quality": 1.0}


@pytest.mark.parametrize("source", ["environment", "user", "business", "gen_ai", "personal"])
def test_other_sources_count_from_any_producer(source: str) -> None:
    spec = parse_spec(PAID)
    for producer in (*STRANGERS, "verify/1"):
        assert paid(spec, count_feedback(spec, [verdict(1.0, source, producer)], 0)) == {"quality": 1.0}


def test_an_unpaid_component_shows_unproven_verdicts() -> None:
    spec = parse_spec(PAID + "shadow = true\n")
    counted = count_feedback(spec, [verdict(1.0, "judge", "otlp-gateway/0.1.0")], 0)
    assert (paid(spec, counted), counted.unproven_source) == ({"quality": 1.0}, ())


def test_an_outcome_without_weight_still_decides_success() -> None:
    spec = parse_spec(PAID + "outcome = true\nweight = 0.0\n")
    counted = count_feedback(spec, [verdict(1.0, "judge", "gateway/1")], 0)
    assert success(spec, components(spec, make_steps("t", 1), counted, complete=True)) is None


def test_an_unproven_report_of_malformed_calls_does_not_count() -> None:
    spec = parse_spec("reward_bounds = [-1.0, 1.0]\ncap_malformed = true\n")
    reported = verdict(1.0, "judge", "otlp-gateway/0.1.0", name="malformed_call")
    counted = count_feedback(spec, [reported], 0)
    assert (counted.malformed, counted.unproven_source) == ([], ("malformed_call",))
    assert len(count_feedback(spec, [reported | {"producer": "verify/1"}], 0).malformed) == 1


def test_only_a_producer_of_verdicts_may_retract_a_verdict() -> None:
    spec = parse_spec(PAID)
    first = verdict(0.0, "test", "verify/1", id="v", source_id="v")
    for producer in STRANGERS:
        back = verdict(None, "user", producer, retracts="v")
        assert paid(spec, count_feedback(spec, [first, back], 0)) == {"quality": 0.0}
        claimed = verdict(1.0, "test", producer, retracts="v", at=1)
        assert paid(spec, count_feedback(spec, [first, claimed], 0)) == {"quality": 0.0}
    for producer in ("verify/1", "verdicts/ab12"):
        assert paid(spec, count_feedback(spec, [first, verdict(None, "user", producer, retracts="v")], 0)) == {}
    thumbs = verdict(1.0, "user", "gateway/1", id="u", source_id="u")
    assert paid(spec, count_feedback(spec, [thumbs, verdict(None, "user", "gateway/1", retracts="u")], 0)) == {}


def test_signals_saved_without_a_producer_still_count() -> None:
    """Else a change of the code would take back verdicts that labels were made from."""
    saved = verdict(1.0, "test", "verify/1") | {"version": 0, "job": ""}
    del saved["producer"]
    head = orjson.dumps({"trajectory_id": "t", "steps": {}, "feedback": {"f": saved}})
    known = unpack_head(head).feedback.values()
    spec = parse_spec(PAID)
    assert paid(spec, count_feedback(spec, known, 0)) == {"quality": 1.0}


PART = "[[component]]\nname = 'a'\nfeedback = 'a'\n"
STEP = PART + "level = 'step'\n"


def test_feedback_counts_until_its_component_is_final() -> None:
    spec = parse_spec(PART + "final_after_s = 10\n[[component]]\nname = 'b'\nfeedback = 'b'\n")
    early = [signal("a", 0.0, "1", arrived=1_000), signal("b", 0.0, "2", arrived=1_000)]
    late = [signal("a", 1.0, "3", arrived=20_000, at=9), signal("b", 1.0, "4", arrived=20_000, at=9)]
    counted = count_feedback(spec, [*early, *late], 5_000)
    assert [[one["id"] for one in counted.by_component[name]] for name in "ab"] == [["1"], ["2", "4"]]
    assert [is_too_late(spec, one, 5_000) for one in (*early, *late)] == [False, False, True, False]
    # So does taking it back.
    back = signal("a", None, "5", retracts="1", arrived=20_000)
    assert [one["id"] for one in count_feedback(spec, [*early, back], 5_000).by_component["a"]] == ["1"]
    assert count_feedback(spec, [*early, {**back, "arrived": 15_000}], 5_000).by_component["a"] == []
    terms = components(spec, make_steps("t", 1), counted, complete=True)[0]
    assert {term["name"]: term["final"] for term in terms} == {"a": True, "b": False}
    [term] = components(spec, make_steps("t", 1), count_feedback(spec, early[:1], 5_000), complete=True)[0]
    assert term["final"] is False


def test_feedback_of_another_source_than_the_declared_one_does_not_count() -> None:
    spec = parse_spec(PART + "source = 'test'\n")
    counted = count_feedback(spec, [signal("a", 1.0, "1"), signal("a", 0.0, "2", source="test")], 0)
    assert ([one["id"] for one in counted.by_component["a"]], counted.wrong_source) == (["2"], ("a",))


def test_a_step_component_is_missing_until_every_step_has_it() -> None:
    spec = parse_spec(STEP + "required = true\nwait_s = 5\n")
    one, two = signal("a", 1.0, "1", step=0), signal("a", 1.0, "2", step=1)
    assert count_feedback(spec, [one], 0).missing(spec, range(2)) == ["a"]
    assert count_feedback(spec, [one, two], 0).missing(spec, range(2)) == []


def test_feedback_reports_a_malformed_call_that_the_record_does_not_show() -> None:
    spec = parse_spec("reward_bounds = [-1.0, 1.0]\ncap_malformed = true\n")
    won = signal("outcome", 1.0, "1")
    [terms] = components(
        spec, make_steps("t", 1), count_feedback(spec, [won, signal("malformed_call", 1.0, "2")], 0), complete=True
    )
    assert [(term["name"], term["value"], term["kind"]) for term in terms] == [
        ("outcome", 1.0, "term"),
        ("cap:malformed", -2.0, "guard"),
    ]
