"""Read the JSON documents of a file: one a line, an array, or documents over many lines; gzipped or not.

Files are UTF-8, or UTF-16 with a byte order mark; pipes work, too. Numbers and texts follow `lenient_json`.
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
    """A document of a file, or the error at its line."""

    line: int
    """First line of the document, from 1; in an array its number, in Parquet its first row."""
    document: Any
    error: str | None = None


def read_documents(path: Path) -> Iterator[FileLine]:
    """Yield the documents of a file, one in memory at a time. An invalid line yields an error; reading continues.

    If the rest of the file cannot be read, as of a truncated gzip file, the last item is that error.

    Raises:
        OSError: the file cannot be read.
    """
    line = 0
    try:
        with _open(path) as file:
            for item in _file_lines(file):
                line = item.line
                yield item
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        yield FileLine(line + 1, None, f"cannot read the rest of the file: {error}")


def to_line(document: Any) -> bytes:
    """Return the document as one line of JSON."""
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


@contextmanager
def _open(path: Path) -> Iterator[TextIO]:
    with ExitStack() as stack:
        raw = stack.enter_context(path.open("rb"))
        if raw.peek(2).startswith(_GZIP):  # the name may have another ending
            raw = BufferedReader(cast(Any, stack.enter_context(gzip.GzipFile(fileobj=raw))))
        is_utf16 = raw.peek(2).startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        yield TextIOWrapper(raw, "utf-16") if is_utf16 else TextIOWrapper(raw, "utf-8", errors="surrogateescape")


def _file_lines(file: TextIO) -> Iterator[FileLine]:
    number, first = 0, ""
    while not first.strip("\ufeff \t\r\n"):
        number, first = number + 1, file.readline()
        if not first:
            return
    if _is_first_line(first):
        yield from _parse_lines(chain([first], file), number)
    else:
        yield from _parse_stream(file, first)


def _is_first_line(text: str) -> bool:
    """Return True if the file has one document a line, judging by its first line."""
    start = text.lstrip("\ufeff \t")
    if start.startswith("["):
        return False
    try:
        orjson.loads(start)
    except orjson.JSONDecodeError:
        return start.strip() != "{" and not start.rstrip().endswith((",", "{", "["))
    return True


def _parse_lines(lines: Iterable[str], first_number: int) -> Iterator[FileLine]:
    """Yield one document a line; the first has the given number."""
    for number, line in enumerate(lines, first_number):
        text = line.lstrip("\ufeff")
        if not text.strip():
            continue
        try:
            yield FileLine(number, lenient_json.loads(text.encode(), max_fallback=None))
        except UnicodeEncodeError as error:
            yield FileLine(number, None, _not_utf8(error))
        except ValueError as error:
            yield FileLine(number, None, f"not JSON: {error}")


def _not_utf8(error: UnicodeEncodeError) -> str:
    byte = ord(error.object[error.start]) & 0xFF
    return f"not UTF-8: byte 0x{byte:02x} after {error.start} characters"


def _parse_stream(file: TextIO, text: str) -> Iterator[FileLine]:
    """Yield documents over many lines, consecutive or in an array. A syntax error ends the reading."""
    decoder = json.JSONDecoder(parse_int=lenient_json.parse_int)
    number, has_more = 0, True
    while True:
        text = text.lstrip("\ufeff \t\r\n,")
        if number == 0 and text.startswith("["):
            text = text[1:]
            continue
        if text and not text.startswith("]"):
            try:
                document, end = decoder.raw_decode(text)
            except json.JSONDecodeError as error:
                if not has_more:
                    yield FileLine(number + 1, None, f"not JSON: {error}")
                    return
            except RecursionError:
                yield FileLine(number + 1, None, "nested too deeply")
                return
            else:
                if isinstance(document, dict) or not has_more or end < len(text):
                    number += 1
                    yield _check_text(number, document, text[:end])
                    text = text[end:]
                    continue
        if not has_more:
            return
        # Each read doubles the text, so a large document is parsed from its start only a few times.
        chunk = file.read(max(_CHUNK, len(text)))
        has_more = bool(chunk)
        text += chunk


def _check_text(number: int, document: Any, text: str) -> FileLine:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return FileLine(number, None, _not_utf8(error))
    return FileLine(number, lenient_json.with_valid_text(document) if "\\u" in text else document)
