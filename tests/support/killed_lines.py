"""Processes that are gone as soon as they come to a line of code."""

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

Line = tuple[str, int]


class traced:
    """Inside, each line of some files is told before it runs, in this thread and in those that it starts."""

    def __init__(self, files: tuple[str, ...], tell: Callable[[Line], Any]) -> None:
        """`files` are the ends of their paths."""
        self._files, self._tell = files, tell

    def __enter__(self) -> None:
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.endswith(self._files) else None

    def _line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            self._tell((frame.f_code.co_filename, frame.f_lineno))
        return self._line


def lines_of(files: tuple[str, ...], run: Callable[[], Any]) -> list[Line]:
    """The lines that a run comes through, each once."""
    seen: dict[Line, None] = {}
    with traced(files, lambda line: seen.setdefault(line)):
        run()
    return list(seen)


def dies_at(line: Line, files: tuple[str, ...], run: Callable[[], Any]) -> bool:
    """Runs in a process that is gone as soon as it comes to the line; whether it came there."""
    child = os.fork()
    if not child:
        try:
            with traced(files, lambda here: os._exit(9) if here == line else None):
                run()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9), f"exit status {status} before {line}"
    return status == 9
