"""End a response at a stop string: find the token that completes it, and cut the text before it."""

from collections.abc import Sequence

from stepstream.services.inference.chat_tokenizer import ChatTokenizer, StreamedText


class StopStrings:
    """Finds the token that completes a stop string; takes each token of one response once, in order."""

    def __init__(self, strings: Sequence[str], tokenizer: ChatTokenizer) -> None:
        self.strings = strings
        self._pieces = StreamedText(tokenizer)
        self._end = ""
        """End of the text that may begin a stop string."""
        self._most = max(map(len, strings)) - 1

    def is_stopped_by(self, token: int) -> bool:
        """Add the next token; return True if the text now contains a stop string."""
        text = self._end + self._pieces.add([token])
        self._end = text[-self._most :] if self._most else ""
        return any(stop in text for stop in self.strings)


class StopTruncator:
    """Cuts a response's text before the stop string that is complete first, piece by piece."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings
        self._held_back = ""
        self._cut = False

    def add(self, piece: str, *, last: bool) -> str:
        """Return the text that is certain now; holds back an end that may begin a stop string."""
        if self._cut:
            return ""
        text = self._held_back + piece
        matches = [(at + len(stop), at) for stop in self._strings if (at := text.find(stop)) >= 0]
        if matches:
            self._cut, self._held_back = True, ""
            return text[: min(matches)[1]]
        keep = 0 if last else max((_begun(text, stop) for stop in self._strings), default=0)
        self._held_back = text[len(text) - keep :]
        return text[: len(text) - keep]


def _begun(text: str, stop: str) -> int:
    """Return the length of the longest end of the text with which the stop string begins."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
