"""Search the fleet's own successes for examples, and measure if showing the nearest of them helps."""

from collections.abc import Sequence
from itertools import chain, zip_longest

from stepstream.services.control.optimise.headroom import measure
from stepstream.services.control.optimise.records import (
    Answerer,
    Attempt,
    Budget,
    CannotSearch,
    Meter,
    Parts,
    Proposal,
    View,
    split,
)
from stepstream.topics.events import Harness, HarnessExample, new_harness_example
from stepstream.topics.step_contexts import conversations
from stepstream.versions.harnesses import version_of
from stepstream.versions.nearest_examples import ExampleIndex

NAME = "examples"
MAX_EXAMPLES = 60
"""Examples of one harness. The nearest 2 of 60 are what was measured; see docs/decisions/harness-optimisers.md."""
SHOWN = (2, 4)
"""Numbers of nearest examples that are tried."""
MAX_CHARACTERS = 4000
"""Length of an example."""


class ExamplesSearch:
    """Tries the nearest 2 and 4 of up to 60 successes, and the 2 most central ones for all conversations."""

    def __init__(self, answer: Answerer, meter: Meter | None = None) -> None:
        """`meter` counts a search that another one began; None: a new one for each search."""
        self._answer = answer
        self._meter = meter

    def propose(self, view: View, parent: Harness, budget: Budget) -> Sequence[Proposal]:
        """As `Optimiser`."""
        meter = self._meter or Meter(budget)
        parts = split(view)
        found = candidates(parts, parent)
        headroom = measure(self._answer, parent, found, parts, meter)
        if not headroom.found:
            return []
        chosen = found[headroom.chosen]
        return [Proposal(chosen, headroom.gain, describe(chosen), NAME)]


def candidates(parts: Parts, parent: Harness) -> list[Harness]:
    """Return the parent with other examples, in several ways.

    Raises:
        CannotSearch: no recorded success can be an example.
    """
    examples = choose_examples(parts.sources)
    if not examples:
        raise CannotSearch(f"no recorded success of at most {MAX_CHARACTERS} characters can be an example")
    shown = [k for k in SHOWN if k < len(examples)]
    pools = [(examples, k) for k in shown] + [(central(examples, SHOWN[0]), 0)]
    return [with_examples(parent, pool, k) for pool, k in pools]


def with_examples(parent: Harness, examples: list[HarnessExample], shown: int) -> Harness:
    """Return the parent with other examples, as a proposal."""
    harness: Harness = {**parent, "examples": examples, "examples_shown": shown}
    harness["version"] = version_of(harness)
    harness["parents"] = [parent["version"]] if parent["version"] else []
    return harness


def choose_examples(sources: Sequence[Attempt]) -> list[HarnessExample]:
    """Return at most 60 successes with different requests, the task families in turn, from the shortest on."""
    by_request: dict[str, tuple[int, str, HarnessExample]] = {}
    for attempt in sources:
        example = example_of(attempt) if attempt.success else None
        if example is not None:
            found = length(example), attempt.family, example
            by_request[attempt.request] = min(by_request.get(attempt.request, found), found, key=lambda one: one[0])
    by_family: dict[str, list[HarnessExample]] = {}
    for _, family, example in sorted(by_request.values(), key=lambda one: one[0]):
        by_family.setdefault(family, []).append(example)
    in_turn = chain.from_iterable(zip_longest(*(by_family[name] for name in sorted(by_family))))
    return [example for example in in_turn if example is not None][:MAX_EXAMPLES]


def example_of(attempt: Attempt) -> HarnessExample | None:
    """Return a trajectory's conversation as an example; None: it is too long, or no single conversation."""
    found = conversations(attempt.steps)
    if len(found) != 1 or not attempt.request:
        return None
    messages = [one.message for one in found[0] if one.message["role"] not in ("system", "developer")]
    example = new_harness_example(messages=messages, trajectory_id=attempt.trajectory_id)
    return example if length(example) <= MAX_CHARACTERS else None


def length(example: HarnessExample) -> int:
    """Return the characters of an example."""
    return sum(
        len(message["content"]) + sum(len(call["arguments"]) for call in message["tool_calls"])
        for message in example["messages"]
    )


def central(examples: Sequence[HarnessExample], k: int) -> list[HarnessExample]:
    """Return the `k` examples that are most often among the nearest to the others."""
    texts = [next(one["content"] for one in example["messages"] if one["role"] == "user") for example in examples]
    index = ExampleIndex(texts)
    votes = [0] * len(texts)
    for i, text in enumerate(texts):
        for j in index.nearest(text, k + 1):
            votes[j] += j != i
    best = sorted(range(len(texts)), key=lambda i: (-votes[i], i))
    return [examples[i] for i in best[:k]]


def describe(harness: Harness) -> str:
    """Return the examples of a harness in words."""
    n, shown = len(harness["examples"]), harness["examples_shown"]
    return f"the {shown} nearest of {n} past successes" if shown else f"{n} past successes for all conversations"
