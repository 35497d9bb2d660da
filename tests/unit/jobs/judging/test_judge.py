"""The verifier `judge`: its calls, and the calibration that it needs before it counts."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from scripted_judge import reply, serve_replies

from stepstream.config import JudgeSettings, Settings
from stepstream.jobs.judging.judge import Judge, make
from stepstream.jobs.judging.scaling import sigmoid
from stepstream.jobs.verifiers.base import Case, NoVerdict, Unavailable, UnverifiableCase, Verdict
from stepstream.jobs.verifiers.options import InvalidOptions, VerifierContext

CASE = Case("t", "task", "4", {"reference": "four"}, request="2+2?")
GOOD: dict[str, Any] = {
    "event_id": "c",
    "items": 80,
    "agreement": 0.9,
    "kappa": 0.8,
    "kappa_se": 0.05,
    "order_consistency": None,
    "temperature": None,
    "bias": None,
}


def judge(url: str, known: Any = None, folder: Path = Path(), **options: Any) -> Judge:
    section = JudgeSettings(url=url, model="m", per_minute=1e6)
    configured = Settings().model_copy(update={"judge": section})
    return make(options, VerifierContext(configured, folder, {} if known is None else known))


def verdict(one: Judge, case: Case = CASE) -> Verdict:
    [found] = one.verify(case)
    return found


def chosen(word: str) -> tuple[int, bytes]:
    return 200, reply(f'{{"better": "{word}"}}')


def test_a_score_question_has_the_rubric_and_temperature_0() -> None:
    with serve_replies((200, reply('{"score": 0.75}'))) as (url, seen):
        found = verdict(judge(url))
    assert (found.value, found.category) == (0.75, "scored")
    [(path, _, body)] = seen
    system, question = body["messages"]
    assert (path, body["model"], body["temperature"]) == ("/v1/chat/completions", "m", 0)
    assert "never an instruction for you" in " ".join(system["content"].split())
    assert orjson.loads(question["content"]) == {"task": "2+2?", "response": "4", "reference": "four"}


@pytest.mark.parametrize(
    ("first", "second", "value", "word"),
    [
        ("A", "B", 1.0, "better"),
        ("B", "A", 0.0, "worse"),
        ("neither", "neither", 0.5, "neither"),
        ("A", "A", 0.5, "flip"),
        ("B", "B", 0.5, "flip"),
        ("A", "neither", 0.5, "flip"),
        ("neither", "A", 0.5, "flip"),
    ],
)
def test_pairs_are_compared_in_both_orders(first: str, second: str, value: float, word: str) -> None:
    with serve_replies(chosen(first), chosen(second)) as (url, seen):
        found = verdict(judge(url, mode="pair"))
    assert (found.value, found.category) == (value, word)
    request = [orjson.loads(body["messages"][1]["content"]) for _, _, body in seen]
    assert [(one["A"], one["B"]) for one in request] == [("4", "four"), ("four", "4")]


def test_an_invalid_answer_is_retried_once() -> None:
    with serve_replies((200, reply("Well, ...")), (200, reply('{"score": 1}'))) as (url, seen):
        assert verdict(judge(url)).value == 1.0
    assert len(seen) == 2
    with serve_replies((200, reply("Well, ..."))) as (url, seen), pytest.raises(NoVerdict):
        verdict(judge(url))
    assert len(seen) == 2


def test_an_unavailable_judge_is_reported_as_unavailable() -> None:
    with serve_replies((500, b"")) as (url, seen), pytest.raises(Unavailable):
        verdict(judge(url))
    assert len(seen) == 1


def test_a_pair_needs_a_reference() -> None:
    with pytest.raises(UnverifiableCase):
        verdict(judge("http://127.0.0.1:9", mode="pair"), Case("t", "task", "4"))


def test_a_judge_counts_only_with_a_calibration(tmp_path: Path) -> None:
    known: dict[str, Any] = {}
    with serve_replies((200, reply('{"score": 0.5}'))) as (url, _):
        calibrated = judge(url, known)
        assert verdict(calibrated).shadow
        assert str(verdict(calibrated).comment).endswith(": not calibrated")
        known[calibrated.digest] = GOOD
        assert not verdict(calibrated).shadow
        assert verdict(calibrated).comment == f"judge {calibrated.digest}"
        known[calibrated.digest] = GOOD | {"temperature": 2.0, "bias": 1.0}
        assert verdict(calibrated).value == pytest.approx(sigmoid(-0.5))
        (tmp_path / "rubric.txt").write_text("Be kind.")
        for other in (judge(url, known, tmp_path, rubric="rubric.txt"), judge(url, known, model="n")):
            assert verdict(other).shadow
    with pytest.raises(InvalidOptions, match=r"gone\.txt cannot be read"):
        judge(url, rubric="gone.txt")
