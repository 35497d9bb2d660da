"""Stop strings: where in the tokens a response ends, and what of its text is told."""

from collections.abc import Sequence

from stepstream.services.inference.chat_tokenizer import ChatTokenizer, StreamedText


class StopStrings:
    """Tells after which token one response holds a stop string; asked of each of its tokens once, in order."""

    def __init__(self, strings: Sequence[str], tokenizer: ChatTokenizer) -> None:
        self.strings = strings
        self._pieces = StreamedText(tokenizer)
        self._end = ""
        """Of the text: as much as can be the beginning of a stop string."""
        self._most = max(map(len, strings)) - 1

    def ended(self, token: int) -> bool:
        """Whether the text has one, now that it has this token too."""
        text = self._end + self._pieces.add([token])
        self._end = text[-self._most :] if self._most else ""
        return any(stop in text for stop in self.strings)


class TextUntil:
    """A response's text up to the stop string that is whole first, piece by piece."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings
        self._held = ""
        self._cut = False

    def add(self, piece: str, *, last: bool) -> str:
        """What can be told now; held back is what may turn out to be the beginning of a stop string."""
        if self._cut:
            return ""
        text = self._held + piece
        found = [(at + len(stop), at) for stop in self._strings if (at := text.find(stop)) >= 0]
        if found:
            self._cut, self._held = True, ""
            return text[: min(found)[1]]
        keep = 0 if last else max((_begun(text, stop) for stop in self._strings), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _begun(text: str, stop: str) -> int:
    """Length of the longest end of the text that a stop string begins with."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
