"""Files of documents: JSON lines, one JSON document or array over many lines, and each of them gzipped."""

import gzip
import json
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import orjson

_CHUNK = 1 << 20


class Place(NamedTuple):
    """A document of a file, or why it cannot be read there."""

    line: int
    """Line that it begins on, from 1; in an array, the number of the document; in Parquet, of the row."""
    document: Any
    error: str | None = None


def documents(path: Path) -> Iterator[Place]:
    """The documents of a file, one in memory at a time. A line that is no JSON is told and passed over.

    Raises:
        OSError: the file cannot be read.
    """
    with _open(path) as file:
        first = ""
        while not first.strip():
            first = file.readline()
            if not first:
                return
        if _is_line(first):
            file.seek(0)
            yield from _lines(file)
        else:
            file.seek(0)
            yield from _scattered(file)


def line_of(document: Any) -> bytes:
    """The document as one line of JSON."""
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return TextIOWrapper(gzip.open(path), encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def _is_line(text: str) -> bool:
    """Whether a file that begins so holds a document a line: anything but the start of a longer one."""
    start = text.lstrip("\ufeff \t")
    if start.startswith("["):
        return False
    try:
        orjson.loads(start)
    except orjson.JSONDecodeError:
        return start.strip() != "{" and not start.rstrip().endswith((",", "{", "["))
    return True


def _lines(file: TextIO) -> Iterator[Place]:
    for number, line in enumerate(file, 1):
        text = line.lstrip("\ufeff")
        if not text.strip():
            continue
        try:
            yield Place(number, orjson.loads(text))
        except orjson.JSONDecodeError as error:
            yield Place(number, None, f"it is no JSON: {error}")


def _scattered(file: TextIO) -> Iterator[Place]:
    """Documents over many lines, one after the other or in an array; after a fault nothing more can be told apart."""
    decoder = json.JSONDecoder()
    text, number, more = "", 0, True
    while True:
        text = text.lstrip("\ufeff \t\r\n,")
        if number == 0 and text.startswith("["):
            text = text[1:]
            continue
        if text and not text.startswith("]"):
            try:
                document, end = decoder.raw_decode(text)
            except json.JSONDecodeError as error:
                if not more:
                    yield Place(number + 1, None, f"it is no JSON: {error}")
                    return
            else:
                if isinstance(document, dict) or not more or end < len(text):
                    number += 1
                    yield Place(number, document)
                    text = text[end:]
                    continue
        if not more:
            return
        # Twice as much each time, so that a large document is not parsed from its start too often.
        chunk = file.read(max(_CHUNK, len(text)))
        more = bool(chunk)
        text += chunk
