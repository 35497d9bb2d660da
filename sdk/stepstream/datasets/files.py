"""Files of documents: JSON lines, one JSON document or array over many lines, and each of them gzipped.

UTF-8, or UTF-16 with its mark; pipes too. Numbers and texts are taken as other parsers take them, see `lenient_json`.
"""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedReader, TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

import orjson

from stepstream.core import lenient_json

_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"


class FileLine(NamedTuple):
    """A document of a file, or why it cannot be read there."""

    line: int
    """Line that it begins on, from 1; in an array, the number of the document; in Parquet, of the row."""
    document: Any
    error: str | None = None


def documents(path: Path) -> Iterator[FileLine]:
    """The documents of a file, one in memory at a time. A line that is no JSON is told and passed over.

    Where the rest of a file cannot be unpacked, as of one that was not copied whole, that is told as its last place.

    Raises:
        OSError: the file cannot be read.
    """
    line = 0
    try:
        with _open(path) as file:
            for place in _placed(file):
                line = place.line
                yield place
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        yield FileLine(line + 1, None, f"from here on the file cannot be read: {error}")


def line_of(document: Any) -> bytes:
    """The document as one line of JSON."""
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


@contextmanager
def _open(path: Path) -> Iterator[TextIO]:
    with ExitStack() as stack:
        raw = stack.enter_context(path.open("rb"))
        if raw.peek(2).startswith(_GZIP):  # whatever its name
            raw = BufferedReader(cast(Any, stack.enter_context(gzip.GzipFile(fileobj=raw))))
        marked = raw.peek(2).startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        yield TextIOWrapper(raw, "utf-16") if marked else TextIOWrapper(raw, "utf-8", errors="surrogateescape")


def _placed(file: TextIO) -> Iterator[FileLine]:
    number, first = 0, ""
    while not first.strip("\ufeff \t\r\n"):
        number, first = number + 1, file.readline()
        if not first:
            return
    if _is_line(first):
        yield from _lines(chain([first], file), number)
    else:
        yield from _scattered(file, first)


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


def _lines(lines: Iterable[str], number: int) -> Iterator[FileLine]:
    """A document a line, from line `number` on."""
    for place, line in enumerate(lines, number):
        text = line.lstrip("\ufeff")
        if not text.strip():
            continue
        try:
            yield FileLine(place, lenient_json.loads(text.encode(), most=None))
        except UnicodeEncodeError as error:
            yield FileLine(place, None, _not_utf8(error))
        except ValueError as error:
            yield FileLine(place, None, f"it is no JSON: {error}")


def _not_utf8(error: UnicodeEncodeError) -> str:
    byte = ord(error.object[error.start]) & 0xFF
    return f"it is not UTF-8: byte 0x{byte:02x} after {error.start} characters"


def _scattered(file: TextIO, text: str) -> Iterator[FileLine]:
    """Documents over many lines, one after the other or in an array; after a fault nothing more can be told apart."""
    decoder = json.JSONDecoder(parse_int=lenient_json.number)
    number, more = 0, True
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
                    yield FileLine(number + 1, None, f"it is no JSON: {error}")
                    return
            except RecursionError:
                yield FileLine(number + 1, None, "it is nested too deeply")
                return
            else:
                if isinstance(document, dict) or not more or end < len(text):
                    number += 1
                    yield _decoded(number, document, text[:end])
                    text = text[end:]
                    continue
        if not more:
            return
        # Twice as much each time, so that a large document is not parsed from its start too often.
        chunk = file.read(max(_CHUNK, len(text)))
        more = bool(chunk)
        text += chunk


def _decoded(number: int, document: Any, text: str) -> FileLine:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return FileLine(number, None, _not_utf8(error))
    return FileLine(number, lenient_json.sound(document) if "\\u" in text else document)
