"""Keep answers of SELECTs that ask for it, as a ClickHouse server does: `use_query_cache = 1, query_cache_ttl = 600`.

chDB sets the size of its query cache to 0, and no configuration changes that. An answer is kept with all that it
depends on but the tables: account, database, settings, parameters, format and text. A statement that changes tables
other than by INSERT empties the cache, so that no answer outlives an erasure. Pure but for the clock; thread-safe.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

TOTAL_BYTES = 64 << 20
"""Bytes of all answers."""
ANSWER_BYTES = 8 << 20
"""Bytes of the largest answer that is kept."""
_DEFAULT_TTL_S = 60.0
_LONGEST_TTL_S = 3600.0
_TRUE = frozenset({"1", "true"})


@dataclass(frozen=True)
class Question:
    """All that an answer depends on but the tables."""

    reads_only: bool
    database: str | None
    settings: tuple[tuple[str, str], ...]
    parameters: tuple[tuple[str, str], ...]
    format: str
    text: bytes


def ttl_of(request: Mapping[str, str], statement: Mapping[str, str]) -> float:
    """Return the seconds that an answer may be kept; 0: it may not.

    Args:
        request: settings of the request.
        statement: settings of the statement's text, which prevail.
    """
    settings = {**request, **statement}
    if settings.get("use_query_cache", "").lower() not in _TRUE:
        return 0.0
    try:
        seconds = float(settings.get("query_cache_ttl", _DEFAULT_TTL_S))
    except ValueError:
        return 0.0
    return min(seconds, _LONGEST_TTL_S) if seconds > 0 else 0.0


class AnswerCache:
    """Answers until their time is over, the least recently used first."""

    def __init__(
        self,
        *,
        total_bytes: int = TOTAL_BYTES,
        answer_bytes: int = ANSWER_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._answer_bytes = answer_bytes
        self._total_bytes = total_bytes
        self._clock = clock
        self._answers: OrderedDict[Question, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0
        self._epoch = 0
        self._lock = threading.Lock()

    def get(self, question: Question) -> bytes | None:
        """Return the answer; None: there is none, or its time is over."""
        with self._lock:
            if (found := self._answers.get(question)) is None:
                return None
            until, answer = found
            if until <= self._clock():
                self._remove(question)
                return None
            self._answers.move_to_end(question)
            return answer

    def record(self, question: Question, ttl_s: float) -> "Recording":
        """Return the recording of an answer whose query begins now."""
        epoch = self._epoch
        return Recording(lambda answer: self._put(question, answer, ttl_s, epoch), self._answer_bytes)

    def _put(self, question: Question, answer: bytes, ttl_s: float, epoch: int) -> None:
        with self._lock:
            if epoch != self._epoch:  # a statement has changed the tables since
                return
            self._remove(question)
            self._answers[question] = self._clock() + ttl_s, answer
            self._bytes += len(answer)
            while self._bytes > self._total_bytes:
                self._remove(next(iter(self._answers)))

    def clear(self) -> None:
        """Forget all answers."""
        with self._lock:
            self._epoch += 1
            self._answers.clear()
            self._bytes = 0

    def _remove(self, question: Question) -> None:
        if (found := self._answers.pop(question, None)) is not None:
            self._bytes -= len(found[1])


class Recording:
    """Blocks of an answer that is kept at its end, unless it is too large."""

    def __init__(self, keep: Callable[[bytes], None], most_bytes: int) -> None:
        self._keep = keep
        self._left = most_bytes
        self._blocks: list[bytes] = []

    def add(self, block: bytes) -> None:
        """Add the next block."""
        self._left -= len(block)
        if self._left >= 0:
            self._blocks.append(block)
        else:
            self._blocks.clear()

    def end(self) -> None:
        """Keep the answer: it is complete."""
        if self._left >= 0:
            self._keep(b"".join(self._blocks))
