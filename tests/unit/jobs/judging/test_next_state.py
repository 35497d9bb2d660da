"""Questions and answers of the next-state judge."""

from typing import Any

import orjson
import pytest
from scripted_judge import reply
from stream_records import make_steps

from stepstream.jobs.judging.next_state import score_of, step_question
from stepstream.jobs.verifiers.base import NoVerdict
from stepstream.topics.events import Step, new_message


def talk(name: str = "t", count: int = 2, **fields: Any) -> list[Step]:
    """Steps in which the user answers each response."""
    steps = make_steps(name, count, **fields)
    for index, step in enumerate(steps):
        step["messages"] = [new_message(role="user", content=f"said {index}")]
        step["response"] = new_message(role="assistant", content=f"answered {index}")
    return steps


def test_the_middle_of_a_long_text_is_removed() -> None:
    before, step = talk()
    before["response"] = new_message(role="assistant", content="a" * 9_000 + "z" * 9_000)
    text = orjson.loads(step_question(before, step))["response"]["text"]
    assert len(text) < 8_100
    assert (text[0], text[-1]) == ("a", "z")


@pytest.mark.parametrize(
    ("content", "score"), [('{"score": 1}', 1.0), ('{"score": -0.25}', -0.25), (' {"score":0}', 0.0)]
)
def test_a_score_is_parsed(content: str, score: float) -> None:
    assert score_of(reply(content)) == score


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        reply(None),
        reply("good"),
        reply("0.5"),
        reply('{"score": 2}'),
        reply('{"score": true}'),
        reply('{"score": "1"}'),
        reply('{"score": 1, "why": "x"}'),
        reply('{"score": 1} and more'),
        reply("[]"),
    ],
)
def test_an_invalid_score_is_rejected(answer: bytes) -> None:
    with pytest.raises(NoVerdict):
        score_of(answer)
