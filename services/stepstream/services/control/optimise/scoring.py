"""Score a candidate's answer to a recorded prompt: by the fleet's verifiers, else against recorded successes."""

from collections.abc import Sequence
from typing import Any, cast

import orjson

from stepstream.jobs.verifiers.base import NoVerdict, UnverifiableCase
from stepstream.jobs.verifiers.cases import cases_of
from stepstream.jobs.verifiers.specification import Verification
from stepstream.services.control.optimise.records import Attempt, Trial
from stepstream.topics.events import Message, Step


class Scorer:
    """Scores answers to the prompts of a view."""

    def __init__(
        self,
        attempts: Sequence[Attempt],
        verifications: Sequence[Verification] = (),
        outcome: str = "",
        *,
        compares_texts: bool = True,
    ) -> None:
        """Collect the first answers of successful attempts by task.

        Args:
            attempts: recorded attempts.
            verifications: of the fleet, at the level of trajectories.
            outcome: name of the verification that decides success; empty: any that applies.
            compares_texts: False: only tasks whose recorded right answers call tools are compared with these.
        """
        self._compares_texts = compares_texts
        self._verifications = [
            one for one in verifications if one.config.level == "trajectory" and outcome in ("", one.config.name)
        ]
        self._right: dict[str, list[Message]] = {}
        for attempt in attempts:
            if attempt.success:
                self._right.setdefault(attempt.task, []).append(attempt.steps[0]["response"])

    def score(self, attempt: Attempt, answer: Message) -> Trial:
        """Return the score of a candidate's answer to the attempt's prompt; may block on a verifier.

        Raises:
            Unavailable: a verifier does not work now.
        """
        right = self._right.get(attempt.task, [])
        hint = f" A right answer: {_text(right[0])}" if right else ""
        value = self._verdict(attempt, answer)
        is_comparable = self._compares_texts or all(one["tool_calls"] for one in right)
        if value is None and right and is_comparable:
            value = float(any(_canonical(one) == _canonical(answer) for one in right))
        if value is None:
            return Trial(None, answer)
        return Trial(value, answer, "Right." if value >= 1 else f"Wrong.{hint}")

    def _verdict(self, attempt: Attempt, answer: Message) -> float | None:
        """Return the first verdict; None: no verification applies to one answer without its continuation."""
        first = attempt.steps[0]
        step: Step = cast(Step, {**first, "response": answer})
        for verification in self._verifications:
            config = verification.config
            if answer["tool_calls"] and not config.reads.startswith("tool_arguments"):
                continue  # the trajectory would go on
            if not config.applies(first["agent"], first["environment"], first["task_id"]):
                continue
            cases = cases_of(verification, [step])
            if cases is None:
                continue
            try:
                return _success(verification, cases)
            except (NoVerdict, UnverifiableCase):
                continue
        return None


def _success(verification: Verification, cases: Sequence[Any]) -> float:
    """Return the verdict on the trajectory; 0 where the text to read is missing."""
    [case] = cases
    return 0.0 if case is None else min(1.0, max(0.0, verification.verifier.verify(case)[-1].value))


def _canonical(message: Message) -> tuple[str, tuple[tuple[str, Any], ...]]:
    calls = tuple((call["name"], _arguments(call["arguments"])) for call in message["tool_calls"])
    return " ".join(message["content"].casefold().split()), calls


def _arguments(text: str) -> bytes | str:
    try:
        return orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS)
    except orjson.JSONDecodeError:
        return text


def _text(message: Message) -> str:
    calls = [f"{call['name']}({call['arguments']})" for call in message["tool_calls"]]
    return " ".join([message["content"], *calls]).strip()
