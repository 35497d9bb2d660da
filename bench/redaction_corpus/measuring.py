"""Measure recall and precision of a redactor over a corpus."""

import base64
import html
import json
import re
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from redaction_corpus import Sample, texts
from stepstream.topics.events import Step

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_HEX = re.compile(r"(?:[0-9a-f]{2}){16,}")


@dataclass
class Outcome:
    """Counts of planted and redacted values, with the errors."""

    steps: int = 0
    bytes: int = 0
    planted: "Counter[str]" = field(default_factory=Counter)
    missed: "Counter[str]" = field(default_factory=Counter)
    misses: list[tuple[str, str, str]] = field(default_factory=list)
    """Kind, carrier and synthetic value."""
    found: int = 0
    wrong: "Counter[str]" = field(default_factory=Counter)
    """Redactions of text that was not planted, by kind of look-alike; `?`: surrounding text."""
    wrongs: list[tuple[str, str]] = field(default_factory=list)

    @property
    def recall(self) -> float:
        """Share of the planted values that are not readable any more."""
        return 1 - self.missed.total() / max(1, self.planted.total())

    @property
    def precision(self) -> float:
        """Share of the redactions that replace a planted value."""
        return 1 - self.wrong.total() / max(1, self.found)


def unfolded(text: str) -> str:
    """Return all readable forms of a text, plain and decoded, without the redaction's code."""
    seen, queue = [text], [text]
    while queue and len(seen) < 60:
        part = queue.pop()
        more = [urllib.parse.unquote_plus(part), html.unescape(part), part.replace("\\/", "/")]
        more += [_unescaped(part)]
        for match in _BASE64.findall(part):
            plain = match.rstrip("=")
            try:
                more.append(
                    base64.b64decode(
                        plain + "=" * (-len(plain) % 4), altchars=b"-_" if set(plain) & set("-_") else None
                    ).decode()
                )
            except ValueError:
                continue
        for match in _HEX.findall(part):
            try:
                more.append(bytes.fromhex(match).decode())
            except ValueError:
                continue
        for form in more:
            if form not in seen:
                seen.append(form)
                queue.append(form)
    return "\x00".join(seen)


def _unescaped(text: str) -> str:
    def undo(match: "re.Match[str]") -> str:
        try:
            return str(json.loads(f'"{match.group()}"'))
        except ValueError:
            return match.group()[1:]

    return re.sub(r"\\(?:u[0-9a-fA-F]{4}|.)", undo, text)


def survives(value: str, readable: str) -> bool:
    """Return True if half of a value, or at least seven characters, is still readable."""
    size = min(len(value), max(7, (len(value) + 1) // 2))
    return any(value[i : i + size] in readable for i in range(max(1, len(value) - size + 1)))


def measure(samples: Iterable[Sample], govern: Callable[[Step], Step]) -> Outcome:
    """Govern every sample and compare it with its planted values."""
    outcome = Outcome()
    for sample in samples:
        governed = govern(sample.step)
        outcome.steps += 1
        outcome.bytes += sum(len(text.encode()) for text in texts(sample.step))
        readable = "\x00".join(unfolded(text) for text in texts(governed))
        missed = 0
        for item in sample.planted:
            outcome.planted[item.kind] += 1
            if survives(item.value, readable):
                missed += 1
                outcome.missed[item.kind] += 1
                outcome.misses.append((item.kind, item.carrier, item.value))
        stamp = governed["governed"]
        assert stamp is not None
        redactions = sum(stamp["redactions"].values())
        outcome.found += redactions
        touched = [(kind, value) for kind, value in sample.negatives if value not in readable]
        for kind, value in touched:
            outcome.wrong[kind] += 1
            outcome.wrongs.append((kind, value))
        around = redactions - (len(sample.planted) - missed) - len(touched)
        if around > 0:
            outcome.wrong["?"] += around
            outcome.wrongs.append(
                ("?", json.dumps([stamp["redactions"], [p.kind for p in sample.planted], texts(governed)]))
            )
    return outcome
