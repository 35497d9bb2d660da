"""Questions of the verifier `judge`, its answers, and its digest."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_judge import reply

from stepstream.jobs.judging.judge_prompts import better_of, digest, score_of
from stepstream.jobs.judging.next_state import digest as next_state_digest
from stepstream.jobs.verifiers.base import NoVerdict


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        reply(None),
        reply("0.5"),
        reply('{"score": 1.1}'),
        reply('{"score": true}'),
        reply('{"score": "1"}'),
        reply('{"score": 1, "why": 2}'),
        reply('{"better": "A"} or so'),
        reply('{"better": "C"}'),
        reply("[]"),
    ],
)
def test_an_invalid_answer_is_no_verdict(answer: bytes) -> None:
    for read in (score_of, better_of):
        with pytest.raises(NoVerdict):
            read(answer)


def test_digests_of_judges_do_not_change() -> None:
    """Calibrations are found by these digests."""
    names = digest("m", "r", "score", None), digest("m", "r", "pair", 3), next_state_digest("m")
    assert [name[:8] for name in names] == ["0ca83af9", "f1bc8228", "65ad2d50"]


@given(st.lists(st.sampled_from(["model", "rubric", "mode", "seed"]), unique=True, min_size=1))
def test_another_model_rubric_or_parameter_is_another_judge(changes: list[str]) -> None:
    fields: dict[str, Any] = {"model": "m", "rubric": "r", "mode": "score", "seed": None}
    other: dict[str, Any] = {"model": "n", "rubric": "s", "mode": "pair", "seed": 1}
    assert digest(**fields) != digest(**{name: (other if name in changes else fields)[name] for name in fields})
