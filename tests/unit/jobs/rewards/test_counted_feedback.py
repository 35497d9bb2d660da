"""Who is believed as a judge, a verifier, a test or a process reward model, and what becomes of what others say."""

from typing import Any

import pytest
from stream_records import make_steps

from stepstream.jobs.labels.trajectory_state import TrajectoryState
from stepstream.jobs.rewards.counted_feedback import CountedFeedback, count_feedback
from stepstream.jobs.rewards.spec import RewardSpec, parse_spec
from stepstream.jobs.rewards.terms import components, success

PAID = "[[component]]\nname = 'quality'\nfeedback = 'quality'\n"
STRANGERS = ("otlp-gateway/0.1.0", "gateway/0.1.0", "sdk/0.1.0", "import/adp", "verifying/1", "me", "")


def signal(value: float | None, source: str, producer: str | None, **fields: Any) -> dict[str, Any]:
    number = f"{source}/{producer}/{value}"
    who = {"id": number, "source_id": number, "source": source, "producer": producer, "consent": "train"}
    return {"name": "quality", "value": value, "step": None, "at": 0, "arrived": 0, "retracts": None, **who} | fields


def paid(spec: RewardSpec, counted: CountedFeedback) -> dict[str, float]:
    [terms] = components(spec, make_steps("t", 1), counted, complete=True)
    return {term["name"]: term["value"] for term in terms}


@pytest.mark.parametrize("producer", STRANGERS)
@pytest.mark.parametrize("source", ["judge", "verifier", "test", "prm"])
@pytest.mark.parametrize("declared", [True, False])
def test_who_only_says_that_it_is_a_judge_is_not_paid(producer: str, source: str, declared: bool) -> None:
    """Neither where the specification asks for that source, nor where it takes anybody."""
    spec = parse_spec(PAID + (f"source = '{source}'\n" if declared else ""))
    counted = count_feedback(spec, [signal(1.0, source, producer)], 0)
    assert paid(spec, counted) == {}
    assert (counted.unproven_source, counted.wrong_source) == (("quality",), ())
    # What came before does not lose its place to it.
    counted = count_feedback(spec, [signal(0.5, source, "verify/1"), signal(1.0, source, producer, at=9)], 0)
    assert paid(spec, counted) == {"quality": 0.5}


@pytest.mark.parametrize(
    ("producer", "believed"),
    [
        ("verify/1", {"judge", "verifier", "test", "prm"}),
        ("judge/1", {"judge"}),
        ("verdicts/ab12", {"verifier", "test", "prm"}),
    ],
)
def test_who_may_speak_for_what(producer: str, believed: set[str]) -> None:
    """Nobody but our jobs for a judge: they alone know whether it is calibrated."""
    for source in ("judge", "verifier", "test", "prm"):
        spec = parse_spec(PAID + f"source = '{source}'\n")
        assert bool(paid(spec, count_feedback(spec, [signal(1.0, source, producer)], 0))) == (source in believed)


@pytest.mark.parametrize("source", ["environment", "user", "business", "gen_ai"])
def test_the_word_of_all_other_sources_counts_whoever_brings_it(source: str) -> None:
    spec = parse_spec(PAID)
    for producer in (*STRANGERS, "verify/1"):
        assert paid(spec, count_feedback(spec, [signal(1.0, source, producer)], 0)) == {"quality": 1.0}


def test_what_is_not_paid_shows_what_anybody_says() -> None:
    spec = parse_spec(PAID + "shadow = true\n")
    counted = count_feedback(spec, [signal(1.0, "judge", "otlp-gateway/0.1.0")], 0)
    assert (paid(spec, counted), counted.unproven_source) == ({"quality": 1.0}, ())


def test_an_outcome_without_weight_still_tells_success() -> None:
    spec = parse_spec(PAID + "outcome = true\nweight = 0.0\n")
    counted = count_feedback(spec, [signal(1.0, "judge", "gateway/1")], 0)
    assert success(spec, components(spec, make_steps("t", 1), counted, complete=True)) is None


def test_a_stranger_cannot_tell_of_malformed_calls_as_a_judge() -> None:
    spec = parse_spec("reward_bounds = [-1.0, 1.0]\ncap_malformed = true\n")
    reported = signal(1.0, "judge", "otlp-gateway/0.1.0", name="malformed_call")
    counted = count_feedback(spec, [reported], 0)
    assert (counted.malformed, counted.unproven_source) == ([], ("malformed_call",))
    assert len(count_feedback(spec, [reported | {"producer": "verify/1"}], 0).malformed) == 1


def test_a_verdict_is_taken_back_by_who_gives_verdicts_alone() -> None:
    spec = parse_spec(PAID)
    verdict = signal(0.0, "test", "verify/1", id="v", source_id="v")
    for producer in STRANGERS:
        back = signal(None, "user", producer, retracts="v")
        assert paid(spec, count_feedback(spec, [verdict, back], 0)) == {"quality": 0.0}
        claimed = signal(1.0, "test", producer, retracts="v", at=1)
        assert paid(spec, count_feedback(spec, [verdict, claimed], 0)) == {"quality": 0.0}
    for producer in ("verify/1", "verdicts/ab12"):
        assert paid(spec, count_feedback(spec, [verdict, signal(None, "user", producer, retracts="v")], 0)) == {}
    thumbs = signal(1.0, "user", "gateway/1", id="u", source_id="u")
    assert paid(spec, count_feedback(spec, [thumbs, signal(None, "user", "gateway/1", retracts="u")], 0)) == {}


def test_what_was_kept_before_producers_were_counts_as_it_did() -> None:
    """Else a change of the code would take back verdicts that labels were made from."""
    head = TrajectoryState("t")
    head.feedback["f"] = signal(1.0, "test", "verify/1") | {"version": 0, "job": ""}
    del head.feedback["f"]["producer"]
    known = TrajectoryState.unpack(head.pack()).feedback.values()
    spec = parse_spec(PAID)
    assert paid(spec, count_feedback(spec, known, 0)) == {"quality": 1.0}
