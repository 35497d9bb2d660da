"""Decode the escapes of a text layer by layer, and map spans of the decoded text back to the original.

Values can be escaped: `ada\\u0040example.org` in JSON (and in JSON inside JSON), `ada%40example.org` in URLs,
`ada&#64;example.org` in HTML. Each view decodes one layer of all kinds. A find in a view is replaced in the original
text, so that everything around it stays byte for byte, and JSON stays JSON.
"""

import html
import re
from bisect import bisect_left, bisect_right
from functools import lru_cache

from stepstream.jobs.redaction.re2_patterns import matches, relax

MAX_LAYERS = 5

_ESCAPE = re.compile(
    r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[\"'\\/bfnrt])|%[0-7][0-9a-fA-F]"
    r"|&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]{2,8});|[\u00ad\u200b-\u200f\u2060\ufeff]"
)
_ASCII_ESCAPE = re.compile(_ESCAPE.pattern.rpartition("|")[0])
_INVISIBLE = re.compile(r"[\u00ad\u200b-\u200f\u2060\ufeff]")
_SIMPLE = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
# Forms and URLs write spaces as `+`, and a plus sign as %2B.
_FORM = re.compile(r"[\w\]]=[^\s=&]{0,500}\+[^\s=]|%[0-7][0-9a-fA-F][^\s]{0,200}\+|\+[^\s+]{0,200}%[0-7][0-9a-fA-F]")
_FORM_HINT = relax(_FORM.pattern)
# Typographic spaces, hyphens and full-width forms, each with its plain character.
_PLAIN: dict[int, int | str] = {
    **{0xFF01 + n: 0x21 + n for n in range(94)},
    **dict.fromkeys((0xA0, 0x2002, 0x2003, 0x2007, 0x2008, 0x2009, 0x200A, 0x202F, 0x3000), " "),
    **dict.fromkeys((0x2010, 0x2011, 0x2012, 0x2013, 0x2212), "-"),
}
_TYPESET = re.compile(f"[{''.join(map(chr, _PLAIN))}]")


def plain(text: str) -> str:
    """Return the text with plain spaces and hyphens and no full-width forms; its length stays."""
    # Searching first is much faster than translating every text with an accented letter.
    return text if text.isascii() or _TYPESET.search(text) is None else text.translate(_PLAIN)


class View:
    """One layer: its text, and the position of each of its characters in the layer below."""

    def __init__(
        self, text: str, below: "View | None", at: list[int], source: list[int], width: list[int], form: bool = False
    ) -> None:
        """Build a layer that consists of pieces of `below`.

        Args:
            text: decoded text.
            below: layer from which it was decoded; None: this is the original text.
            at: begin of each piece in this layer.
            source: begin of each piece in `below`.
            width: length of each piece in `below` if it is an escape; 0: the piece is equal in both layers.
            form: True if plus signs in `below` are spaces here.
        """
        self.text = text
        self.form = form
        self._below, self._at, self._source, self._width = below, at, source, width
        self._escapes: tuple[list[int], list[int]] | None = None

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Map a span of this layer to the original text."""
        view = self
        while view._below is not None:
            k = bisect_right(view._at, start) - 1
            first = view._source[k] + (0 if view._width[k] else start - view._at[k])
            k = bisect_right(view._at, end - 1) - 1
            end = view._source[k] + (view._width[k] or end - view._at[k])
            start, view = first, view._below
        return start, end

    def snapped(self, start: int, end: int) -> tuple[int, int]:
        """Return a span of the original text without partial escapes of this layer at its ends."""
        if self._escapes is None:
            spans = [self.span(a, a + 1) for a, width in zip(self._at, self._width, strict=True) if width]
            self._escapes = [first for first, _ in spans], [last for _, last in spans]
        firsts, lasts = self._escapes
        k = bisect_left(firsts, start) - 1
        if k >= 0 and lasts[k] > start:
            start = lasts[k]
        k = bisect_left(firsts, end) - 1
        if k >= 0 and lasts[k] > end:
            end = firsts[k]
        return start, end


def surface(text: str) -> View:
    """Return the view of the original text."""
    return View(plain(text), None, [0], [0], [0])


def views_of(text: str) -> list[View]:
    """Return the view of the text itself, then one view for each layer of escapes."""
    views = [surface(text)]
    while len(views) <= MAX_LAYERS and (layer := decode_layer(views[-1])) is not None:
        views.append(layer)
    return views


def decode_text(text: str) -> tuple[str, bool] | None:
    """Decode one layer of a text; also return True if plus signs were spaces. None: nothing is escaped.

    As `decode_layer`, but without the mapping back, in half the time.
    """
    form, escape = _escapes(text)
    if escape is None:
        return None
    literal = text.replace("+", " ") if form else text
    plainer = escape.sub(_replaced, literal)
    if not plainer or (plainer == literal and not form):
        return None
    return plain(plainer), form


def decode_layer(below: View) -> View | None:
    """Decode one layer of a view; None: nothing is escaped."""
    text = below.text
    form, escape = _escapes(text)
    if escape is None:
        return None
    literal = text.replace("+", " ") if form else text
    pieces: list[str] = []
    at: list[int] = []
    source: list[int] = []
    width: list[int] = []
    done = size = 0
    for match in escape.finditer(text):
        meaning = _meaning(match.group())
        start, end = match.span()
        if meaning is None:
            continue
        if start > done:
            pieces.append(literal[done:start])
            at.append(size)
            source.append(done)
            width.append(0)
            size += start - done
        if meaning:
            pieces.append(meaning)
            at.append(size)
            source.append(start)
            width.append(end - start)
            size += 1
        done = end
    if not done and not form:
        return None
    if done < len(text):
        pieces.append(literal[done:])
        at.append(size)
        source.append(done)
        width.append(0)
    plainer = "".join(pieces)
    if not plainer:
        return None
    return View(plain(plainer), below, at, source, width, form)


def _escapes(text: str) -> "tuple[bool, re.Pattern[str] | None]":
    """Return True if the text is form-encoded, and the pattern of its escapes; None: there are none."""
    ascii_only = text.isascii()
    form = "+" in text and matches(_FORM_HINT, text) and _FORM.search(text) is not None
    if form or "\\" in text or "%" in text or "&" in text or not (ascii_only or _INVISIBLE.search(text) is None):
        return form, _ASCII_ESCAPE if ascii_only else _ESCAPE
    return False, None


def _replaced(escape: "re.Match[str]") -> str:
    matches = escape.group()
    meaning = _meaning(matches)
    return matches if meaning is None else meaning


@lru_cache(4096)
def _meaning(escape: str) -> str | None:
    """Return the character that an escape encodes, "" for an invisible one, None for a literal."""
    lead = escape[0]
    if lead == "\\":
        kind = escape[1]
        return chr(int(escape[2:], 16)) if kind in "ux" else _SIMPLE.get(kind, kind)
    if lead == "%":
        return chr(int(escape[1:], 16))
    if lead == "&":
        meaning = html.unescape(escape)
        return meaning if len(meaning) == 1 else None
    return ""
