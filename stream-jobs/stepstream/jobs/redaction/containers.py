"""Find base64 and hexadecimal pieces of a text that decode to readable text."""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stepstream.jobs.redaction.re2_patterns import find_spans

_SHORTEST = 16
_SIGN, _DIGIT = "[A-Za-z0-9+/_-]", "[0-9A-Fa-f]"
# Four base64 characters whose first two bytes are ASCII: the highest bit of each is 0.
_TEXTUAL = rf"[CDI-Za-f][AC-HQS-Xgi-nwyz0-3]{_SIGN}{_SIGN}"
# A run in which some part decodes to ASCII, aligned from its begin. Words, paths and UUIDs rarely match.
_RUN = (
    rf"(?:^|[^A-Za-z0-9+/_-])(?:(?:{_SIGN}{{4}})*(?:{_TEXTUAL}){{2}}"
    rf"|(?:{_DIGIT}{{2}})*(?:[2-7]{_DIGIT}|0[9AaDd]){{2}}){_SIGN}*"
)
_NO_SIGN = re.compile(r"[^A-Za-z0-9+/_-]")
# Lines of equal length (MIME, PEM without its frame) are one piece; the last line may be shorter.
_LINE = 60
_NEXT_LINE = re.compile(r"\r?\n([A-Za-z0-9+/_-]{1,76}={0,2})(?![A-Za-z0-9+/_-])")
_HEX = re.compile(r"(?:[0-9a-f]{2}){8,}|(?:[0-9A-F]{2}){8,}")
_READABLE = bytes(range(32, 127)) + b"\t\r\n"
_NO_BLANKS = dict.fromkeys(map(ord, "\t\r\n"))
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_PROBE = 64
_MIN_LETTERS = 4


class Container(NamedTuple):
    """An encoded piece and its decoded content; `wrap` encodes other content the same way."""

    start: int
    end: int
    content: str
    wrap: Callable[[str], str]


def find_containers(text: str) -> Iterator[Container]:
    """Yield the pieces with readable content."""
    done = 0
    for start, end in find_spans(_RUN, text):
        if _NO_SIGN.match(text, start):
            start += 1
        end += 2 if text.startswith("==", end) else text.startswith("=", end)
        size = end - start
        if start < done or size < _SHORTEST:
            continue
        if size >= _LINE and (pieces := _lines(text, end, size)) is not None:
            end = pieces
        done = end
        piece = text[start:end]
        hexadecimal = _HEX.fullmatch(piece) is not None
        content = _readable(bytes.fromhex(piece)) if hexadecimal else _from_base64(piece)
        if content is not None:
            yield Container(start, end, content, (_hex_writer if hexadecimal else _base64_writer)(piece))


def _lines(text: str, end: int, size: int) -> int | None:
    """Return the end of the lines that continue a line of this size; None if there are none."""
    begin = end
    while (line := _NEXT_LINE.match(text, end)) and len(line.group(1)) <= size:
        end = line.end()
        if len(line.group(1)) < size:
            break
    return end if end > begin else None


def _from_base64(piece: str) -> str | None:
    joined = piece if "\n" not in piece else piece.replace("\r", "").replace("\n", "")
    plain = joined.rstrip("=").encode().translate(_URL_SAFE)
    if len(plain) % 4 == 1:
        return None
    # Most pieces are words, ids and pictures: decode the beginning first.
    if _readable(binascii.a2b_base64(plain[: min(len(plain) // 4 * 4, _PROBE)])) is None:
        return None
    return _readable(binascii.a2b_base64(plain + b"=" * (-len(plain) % 4)))


def _readable(data: bytes) -> str | None:
    """Decode bytes that are UTF-8 and nearly all printable (None: they are not); the last character may be cut off."""
    if len(data.translate(None, _READABLE)) * 4 > len(data):
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if error.start < len(data) - 3:
            return None
        text = data[: error.start].decode()
    blank = text.translate(_NO_BLANKS)
    odd = 0 if blank.isprintable() else sum(1 for character in blank if not character.isprintable())
    return text if odd * 10 <= len(text) and len(text) >= _MIN_LETTERS else None


def _hex_writer(piece: str) -> Callable[[str], str]:
    def wrap(content: str) -> str:
        written = content.encode("utf-8", "surrogatepass").hex()
        return written.upper() if piece.isupper() else written

    return wrap


def _base64_writer(piece: str) -> Callable[[str], str]:
    def wrap(content: str) -> str:
        data = content.encode("utf-8", "surrogatepass")
        url_safe = "-" in piece or "_" in piece
        written = (base64.urlsafe_b64encode if url_safe else base64.b64encode)(data).decode()
        padded = piece.endswith("=") or len(piece.rstrip("=")) % 4 == 0
        return written if padded else written.rstrip("=")

    return wrap
