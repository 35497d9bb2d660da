"""Quality flags, languages and signatures of trajectories."""

from typing import Any

import pytest
from stream_records import make_steps

from stepstream.jobs.curation.languages import language_of
from stepstream.jobs.curation.quality import LOOP, kept_out, quality_flags
from stepstream.jobs.curation.signature import shingles, signature, words_of
from stepstream.jobs.labels.tool_results import attach_tool_results
from stepstream.topics.events import Step, TrajectoryEnd, new_message, new_tool_call

TEXTS = {
    "en": "The order was sent to the wrong address, and it is not clear from the log if we have to send it again or "
    "if they will pick it up. I would ask for the address and be on the safe side.",
    "de": "Die Bestellung wurde an die falsche Adresse geschickt, und es ist nicht klar, ob wir sie noch einmal senden "
    "oder ob sie abgeholt wird. Ich würde nach der Adresse fragen, um auf der sicheren Seite zu sein.",
    "fr": "La commande est partie à la mauvaise adresse, et ce n'est pas clair dans le journal si nous devons la "
    "renvoyer ou si elle est à chercher. Je demande l'adresse avec plaisir pour être sur la bonne voie.",
    "es": "El pedido se ha enviado a una dirección que no es la buena, y no está claro en el registro si hay que "
    "enviarlo otra vez o si lo van a recoger. Es mejor preguntar por la dirección con calma para no fallar.",
    "ru": "Заказ был отправлен по неверному адресу, и неясно, нужно ли отправлять его ещё раз.",
    "zh": "订单被发送到了错误的地址,我们需要再次确认客户的地址,然后重新发送一次。谢谢您的耐心等待。",
    "ja": "注文は間違った住所に送られました。もう一度住所を確認してから、もう一度送る必要があります。",
}


def flags(steps: list[Step], end: TrajectoryEnd = "terminated", languages: tuple[str, ...] = ()) -> list[str]:
    return quality_flags(steps, attach_tool_results(steps), end, languages)


def varied(count: int, **fields: Any) -> list[Step]:
    """Steps that each call something else."""
    steps = make_steps("t", count, **fields)
    for index, step in enumerate(steps):
        call = new_tool_call(call_id="c", name="get", arguments=str(index))
        step["response"] = new_message(role="assistant", content="Looking.", tool_calls=[call])
    return steps


def test_a_good_trajectory_has_no_flags() -> None:
    assert flags(varied(6)) == []


def test_a_failure_before_a_successful_end_is_partial() -> None:
    steps = varied(3)
    steps[1]["error"] = "Timeout"
    assert flags(steps) == ["partial_failure"]
    steps[1]["error"], steps[2]["error"] = None, "Timeout"
    assert flags(steps) == []
    steps[2]["error"] = None
    steps[0]["response"]["tool_calls"][0]["error"] = "NotFound"
    assert flags(steps) == ["partial_failure"]


@pytest.mark.parametrize("reason", ["length", "MAX_TOKENS", "max_output_tokens"])
def test_every_provider_finish_reason_for_a_limit_is_truncated(reason: str) -> None:
    assert flags(varied(2, finish_reason=reason)) == ["truncated"]


def test_a_truncated_end_is_flagged() -> None:
    assert flags(varied(2), end="truncated") == ["truncated"]
    assert flags(varied(2, finish_reason="length")) == ["truncated"]


def test_repeated_calls_are_a_loop_unless_their_results_change() -> None:
    assert flags(make_steps("t", LOOP - 1)) == []
    assert flags(make_steps("t", LOOP)) == ["looping"]
    polling = make_steps("t", LOOP + 1)
    for index, step in enumerate(polling[1:]):
        step["messages"] = [new_message(role="tool", tool_call_id=f"c{index}", content=f"{index} %")]
    assert flags(polling) == []
    steps = make_steps("t", LOOP, response=new_message(role="assistant", content="I am sorry."))
    assert flags(steps) == ["looping"]


def test_branches_from_one_step_are_no_loop() -> None:
    steps = make_steps("t", LOOP + 1)
    for step in steps[1:]:
        step["prompt_shared_step"] = 0
    assert flags(steps) == []


def test_a_response_without_content_is_empty_but_a_sampled_end_of_turn_is_not() -> None:
    nothing = new_message(role="assistant", content=" \n")
    assert flags(make_steps("t", 1, response=nothing)) == []
    assert flags(make_steps("t", 2, response=nothing, response_token_ids=[])) == ["empty"]


@pytest.mark.parametrize("language", sorted(TEXTS))
def test_each_language_is_detected(language: str) -> None:
    assert language_of(TEXTS[language]) == language


@pytest.mark.parametrize(
    "text",
    ["", "ok", "42 = 6 * 7", "Die Bestellung ist da.", "def run(x): return [y for y in x if y]\n" * 9, "日本"],
)
def test_short_texts_and_code_have_no_language(text: str) -> None:
    assert language_of(text) is None


def test_another_language_is_flagged_only_if_the_policy_lists_some() -> None:
    steps = make_steps("t", 1, response=new_message(role="assistant", content=TEXTS["de"]))
    assert flags(steps) == []
    assert flags(steps, languages=("en", "de")) == []
    assert flags(steps, languages=("en",)) == ["wrong_language:de"]
    assert kept_out(["truncated", "wrong_language:de"], ("wrong_language",)) == ["wrong_language:de"]


def test_scripts_without_spaces_are_compared_by_letters() -> None:
    text = "今天我们查看了三号订单，发现它还没有发货；客户希望改到下周五送达，并且要求开具发票。abc 12"
    found = [
        words_of(make_steps("t", 1, messages=[], response=new_message(role="assistant", content=content)))
        for content in (text, text.replace("三", "四"))
    ]
    assert (found[0][:4], found[0][-2:]) == (["今", "天", "我", "们"], ["abc", "12"])
    one, other = map(shingles, found)
    assert len(one & other) / len(one | other) > 0.7


def test_signatures_estimate_the_jaccard_similarity() -> None:
    text = " ".join(f"word{number}" for number in range(300))
    near = text.replace("word150", "other")
    made = [
        make_steps("t", 1, messages=[], response=new_message(role="assistant", content=content))
        for content in (text, near, TEXTS["en"], "")
    ]
    one, two, three, nothing = map(signature, made)
    assert nothing == []
    assert all(0 <= value < 2**32 for value in one)
    true = len(shingles(text.split()) & shingles(near.split())) / len(shingles(text.split()) | shingles(near.split()))
    assert sum(a == b for a, b in zip(one, two, strict=True)) / len(one) == pytest.approx(true, abs=0.12)
    assert sum(a == b for a, b in zip(one, three, strict=True)) < 10
