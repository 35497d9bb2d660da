"""Parse server-sent events (WHATWG HTML, section 9.2) incrementally, keeping the bytes of each. Pure."""

import re
from typing import NamedTuple

# Atomic, so that one \r\n never counts as two line ends.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r){2}")
_LINE = re.compile(rb"\r\n|\n|\r")


class ServerSentEvent(NamedTuple):
    """One block of a stream: its bytes with the blank line, and the text of its `data` lines."""

    raw: bytes
    data: bytes | None
    """None: a block without data, as a comment or keep-alive."""


class EventParser:
    """Splits a stream of bytes into events, independent of its chunks."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that this chunk completes."""
        buffer = self._rest + chunk if self._rest else chunk
        if b"\r" not in buffer:
            *blocks, self._rest = buffer.split(b"\n\n")
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
        self._rest = buffer[start:]
        return events

    def rest(self) -> bytes:
        """Return the bytes after the last complete event."""
        return self._rest


def with_data(event: ServerSentEvent, data: bytes) -> bytes:
    """Return an event with other data in one line and its other lines unchanged."""
    if event.raw.startswith(b"data:"):
        return b"data: %b\n\n" % data
    other_lines = [line for line in _LINE.split(event.raw) if line and line.partition(b":")[0] != b"data"]
    return b"\n".join([*other_lines, b"data: " + data]) + b"\n\n"


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
