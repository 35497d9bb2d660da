"""Parse server-sent events (WHATWG HTML, section 9.2) incrementally, keeping the bytes of each. Pure."""

import re
from typing import NamedTuple

# Possessive, so that one \r\n never counts as two line ends.
_BLANK_LINE = re.compile(rb"(?:\r\n?+|\n)(?:\r\n?|\n)")
_LINE = re.compile(rb"\r\n|\n|\r")
_TAIL = 2
"""Bytes of the incomplete event that may make a blank line with the next chunk: one, or two that wait for a \\n."""


class ServerSentEvent(NamedTuple):
    """One block of a stream: its bytes with the blank line, and the text of its `data` lines."""

    raw: bytes
    data: bytes | None
    """None: a block without data, as a comment or keep-alive."""


class EventParser:
    """Splits a stream of bytes into events, independent of its chunks."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        """Chunks of the incomplete event."""
        self._tail = b""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that this chunk completes, in time proportional to the chunk and these events."""
        buffer = chunk
        if self._parts:
            self._parts.append(chunk)
            seam = self._tail + chunk
            if not _has_blank_line(seam):
                self._tail = seam[-_TAIL:]
                return []
            buffer = b"".join(self._parts)
        if b"\r" not in buffer:
            *blocks, rest = buffer.split(b"\n\n")
            if rest or self._parts:
                self._keep(rest)
            return [
                ServerSentEvent(
                    block + b"\n\n", block[6:] if block.startswith(b"data: ") and b"\n" not in block else _data(block)
                )
                for block in blocks
            ]
        events = []
        start = 0
        while (end := _event_end(buffer, start)) >= 0:
            raw = buffer[start:end]
            events.append(ServerSentEvent(raw, _data(raw)))
            start = end
        self._keep(buffer[start:])
        return events

    def rest(self) -> bytes:
        """Return the bytes after the last complete event."""
        return b"".join(self._parts)

    def _keep(self, rest: bytes) -> None:
        self._parts = [rest] if rest else []
        self._tail = rest[-_TAIL:]


def with_data(event: ServerSentEvent, data: bytes) -> bytes:
    """Return an event with other data in one line and its other lines unchanged."""
    if event.raw.startswith(b"data:"):
        return b"data: %b\n\n" % data
    other_lines = [line for line in _LINE.split(event.raw) if line and line.partition(b":")[0] != b"data"]
    return b"\n".join([*other_lines, b"data: " + data]) + b"\n\n"


def _has_blank_line(data: bytes) -> bool:
    """Return True if a blank line begins in the data: each one has one of these pairs."""
    return b"\n\n" in data or b"\n\r" in data or b"\r\r" in data


def _event_end(buffer: bytes, start: int) -> int:
    match = _BLANK_LINE.search(buffer, start)
    # A carriage return as the last byte may be half of a line end: wait for the next one.
    if match is None or (match.end() == len(buffer) and buffer.endswith(b"\r")):
        return -1
    return match.end()


def _data(block: bytes) -> bytes | None:
    lines = []
    for line in _LINE.split(block):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value[1:] if value.startswith(b" ") else value)
    return b"\n".join(lines) if lines else None
