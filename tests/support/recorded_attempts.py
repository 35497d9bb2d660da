"""Recorded attempts for optimisers, and models that answer by a rule."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from stepstream.services.control.optimise.records import Attempt, Meter, Trial, View
from stepstream.services.control.optimise.scoring import Scorer
from stepstream.services.control.optimise.shadow import request_of
from stepstream.topics.events import Harness, Step, new_harness, new_message, new_sampling, new_step

PARENT = new_harness(event_id="", occurred_at_us=0, tenant="t", agent="a", version="")


def step(number: int, text: str, answer: str, **fields: Any) -> Step:
    values: dict[str, Any] = {
        "event_id": f"step-{number}",
        "occurred_at_us": number,
        "producer": "test",
        "tenant": "t",
        "consent": "train",
        "trajectory_id": f"trajectory-{number}",
        "step_index": 0,
        "task_id": f"family{number % 3}/{number}",
        "agent": "a",
        "model": "m",
        "fidelity": "text",
        "messages": [new_message(role="system", content="Old."), new_message(role="user", content=text)],
        "response": new_message(role="assistant", content=answer),
        "sampling": new_sampling(),
    }
    return new_step(**(values | fields))


def attempt(number: int, text: str, answer: str, *, success: bool = True, **fields: Any) -> Attempt:
    first = step(number, text, answer, **fields)
    return Attempt(first["trajectory_id"], first["task_id"], f"family{number % 3}", (first,), success)


def every(number: int) -> bool:
    return True


@cache
def coded_view(n: int = 120, success: Callable[[int], bool] = every) -> View:
    """Return questions about 5 words, each of which has one right answer; other answers are wrong."""
    words = ["apple", "breeze", "castle", "dragon", "ember"]
    attempts = [
        attempt(i, f"What is the code of {words[i % 5]}? Ticket {i}.", f"code-{i % 5}", success=success(i))
        for i in range(n)
    ]
    return View("t", "a", tuple(attempts))


class Model:
    """Answers by a rule on the chat request, scored against the recorded successes."""

    def __init__(self, view: View, rule: Callable[[dict[str, Any]], str]) -> None:
        self._scorer, self._rule = Scorer(view.attempts), rule
        self.asked: list[tuple[Harness, Attempt]] = []

    def __call__(self, harness: Harness, attempts: Sequence[Attempt], meter: Meter) -> list[Trial]:
        meter.take(len(attempts))
        self.asked += [(harness, one) for one in attempts]
        answers = [self._rule(request_of(harness, one)) for one in attempts]
        return [
            self._scorer.score(one, new_message(role="assistant", content=text))
            for one, text in zip(attempts, answers, strict=True)
        ]


def copies_similar_example(request: dict[str, Any]) -> str:
    """Answer as the shown example about the same word did: only the nearest examples help."""
    *shown, question = [message for message in request["messages"] if message["role"] != "system"]
    word = question["content"].split()[5]
    pairs = zip(shown[::2], shown[1::2], strict=True)
    return next((answer["content"] for asked, answer in pairs if asked["content"].split()[5] == word), "no idea")
