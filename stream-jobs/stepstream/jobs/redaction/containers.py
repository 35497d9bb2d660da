"""Text inside text: base64 and hexadecimal pieces that decode to something readable."""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

# 16 characters or more, also in lines of the same length (MIME, PEM without its frame).
_CANDIDATE = re.compile(r"[A-Za-z0-9+/_-]{60,76}(?:\r?\n[A-Za-z0-9+/_-]{60,76})+(?:\r?\n[A-Za-z0-9+/_-]{1,76})?={0,2}"
                        r"|[A-Za-z0-9+/_-]{16,}={0,2}")  # fmt: skip
_HEX = re.compile(r"(?:[0-9a-f]{2}){8,}|(?:[0-9A-F]{2}){8,}")
_READABLE = bytes(range(32, 127)) + b"\t\r\n"
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_PROBE = 64
_MIN_LETTERS = 4


class Container(NamedTuple):
    """A piece and what it holds; `wrap` encodes other content the same way."""

    start: int
    end: int
    content: str
    wrap: Callable[[str], str]


def containers(text: str) -> Iterator[Container]:
    """The pieces that hold readable text."""
    for match in _CANDIDATE.finditer(text):
        piece = match.group()
        if _HEX.fullmatch(piece):
            content = _readable(bytes.fromhex(piece))
            if content is not None:
                yield Container(*match.span(), content, _hex_writer(piece))
            continue
        content = _from_base64(piece)
        if content is not None:
            yield Container(*match.span(), content, _base64_writer(piece))


def _from_base64(piece: str) -> str | None:
    joined = piece if "\n" not in piece else piece.replace("\r", "").replace("\n", "")
    plain = joined.rstrip("=").encode().translate(_URL_SAFE)
    if len(plain) % 4 == 1:
        return None
    # Most pieces are words, ids and pictures: their beginning tells.
    if _readable(binascii.a2b_base64(plain[: min(len(plain) // 4 * 4, _PROBE)])) is None:
        return None
    return _readable(binascii.a2b_base64(plain + b"=" * (-len(plain) % 4)))


def _readable(data: bytes) -> str | None:
    """The text of bytes that are UTF-8 and nearly all printable; a character cut off at the end is allowed."""
    if len(data.translate(None, _READABLE)) * 4 > len(data):
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if error.start < len(data) - 3:
            return None
        text = data[: error.start].decode()
    odd = sum(1 for character in text if not (character.isprintable() or character in "\t\r\n"))
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
