"""Generate seeded steps with planted personal data and secrets, for measuring redaction.

`corpus` yields steps of about a kilobyte with the planted values and their places. The rules were developed against the
development half; the held-out half has phrasings and carriers that nobody looked at during development.
"""

import base64
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redaction_corpus import carriers, snippets
from redaction_corpus.values import ALNUM, KINDS, NAMES, NEGATIVES, Value, mixed
from stepstream.topics.events import Step, new_message, new_sampling, new_step, new_tool_call
from stepstream.topics.ids import derived_id

T0_US = 1_760_000_000_000_000
_LINES = 6


@dataclass(frozen=True)
class Planted:
    """A value planted in a step's text."""

    kind: str
    value: str
    carrier: str


@dataclass(frozen=True)
class Sample:
    """A step, its planted values and its harmless look-alikes."""

    step: Step
    planted: tuple[Planted, ...]
    negatives: tuple[tuple[str, str], ...]
    """Kind and text of harmless look-alikes."""


def corpus(
    half: str,
    items: int,
    seed: int = 0,
    *,
    share_dirty: float = 1.0,
    values: Mapping[str, Value] | None = None,
    ways: Sequence[carriers.Carrier] | None = None,
    size: int = 0,
) -> Iterator[Sample]:
    """Yield steps of a half (`development` or `held_out`) until `items` values are planted.

    Args:
        half: Half whose phrasings and carriers apply.
        items: Number of planted values.
        seed: Seed of all draws.
        share_dirty: Share of the texts with a planted value.
        values: Generators of values that replace the corpus' own, by kind.
        ways: Carriers that replace those of the half.
        size: Minimum bytes of text in a step; prose fills up the rest.
    """
    rng = random.Random(f"{half}/{seed}")
    generators = {**KINDS, "url_password": _url_password, "basic": _basic, **(values or {})}
    phrasings = snippets.DEVELOPMENT if half == "development" else snippets.HELD_OUT
    ways = ways or (carriers.DEVELOPMENT if half == "development" else carriers.HELD_OUT)
    planted, number = 0, 0
    while planted < items:
        sample = _sample(f"{half}-{seed}-{number}", rng, generators, phrasings, ways, share_dirty)
        _fill(sample.step, size)
        planted += len(sample.planted)
        number += 1
        yield sample


def _sample(
    name: str, rng: random.Random, generators: Mapping[str, Value], phrasings: Any, ways: Any, share: float
) -> Sample:
    planted: list[Planted] = []
    negatives: list[tuple[str, str]] = []

    def text(lines: int) -> str:
        way = rng.choice(ways)
        content = [rng.choice(carriers.PROSE) for _ in range(lines)]
        if rng.random() < share:
            kind = rng.choice(sorted(phrasings))
            value = generators[kind](rng)
            content[rng.randrange(lines)] = rng.choice(phrasings[kind]).replace("{v}", value)
            planted.append(Planted(kind, value, way.__name__.strip("_")))
        if rng.random() < 0.5:
            kind = rng.choice(sorted(NEGATIVES))
            value = NEGATIVES[kind](rng)
            negatives.append((kind, value))
            content.insert(rng.randrange(lines + 1), f"see {value} ." if kind != "code" else value)
        return str(way(rng, content))

    call = new_tool_call(call_id="call_1", name="lookup", arguments=text(1 + _LINES // 4), result=text(_LINES // 2))
    step = new_step(
        event_id=derived_id("corpus", name),
        occurred_at_us=T0_US,
        producer="corpus/1",
        consent="train",
        trajectory_id=name,
        step_index=0,
        agent="corpus",
        model="demo",
        fidelity="text",
        messages=[new_message(role="user", content=text(_LINES // 2))],
        response=new_message(role="assistant", content=text(2), tool_calls=[call]),
        sampling=new_sampling(),
    )
    return Sample(step, tuple(planted), tuple(negatives))


def texts(step: Step) -> list[str]:
    """Return the texts of a step of the corpus."""
    call = step["response"]["tool_calls"][0]
    contents = [message["content"] for message in step["messages"]]
    return [call["arguments"], call["result"] or "", *contents, step["response"]["content"]]


def _fill(step: Step, size: int) -> None:
    missing = size - sum(len(text.encode()) for text in texts(step))
    if missing > 0:
        prose = itertools.cycle(line for line in carriers.PROSE if line.isascii())
        filling = ""
        while len(filling) < missing:
            filling += next(prose) + " "
        step["messages"].append(new_message(role="user", content=filling[:missing]))


def _url_password(rng: random.Random) -> str:
    return mixed(rng, ALNUM + "!*_-", 16)


def _basic(rng: random.Random) -> str:
    return base64.b64encode(f"svc-{rng.randrange(99)}:{mixed(rng, ALNUM, 12)}".encode()).decode()


__all__ = ["NAMES", "Planted", "Sample", "corpus", "texts"]
