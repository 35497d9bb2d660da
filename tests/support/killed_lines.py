"""Kill a forked process at a given line of code."""

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

Line = tuple[str, int]


class trace_lines:
    """Context manager that calls `on_line` before each line of some files, in this thread and those it starts."""

    def __init__(self, files: tuple[str, ...], on_line: Callable[[Line], Any]) -> None:
        """Trace the files whose paths end with one of `files`."""
        self._files, self._on_line = files, on_line

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
            self._on_line((frame.f_code.co_filename, frame.f_lineno))
        return self._line


def executed_lines(files: tuple[str, ...], run: Callable[[], Any]) -> list[Line]:
    """Return the lines that `run` executes, each once, in order of first execution."""
    seen: dict[Line, None] = {}
    with trace_lines(files, lambda line: seen.setdefault(line)):
        run()
    for file in files:
        assert any(path.endswith(file) for path, _ in seen), f"no line of {file} ran: was it moved?"
    return list(seen)


def is_killed_at(line: Line, files: tuple[str, ...], run: Callable[[], Any]) -> bool:
    """Run in a forked process that exits before `line`; return True if it reached that line."""
    child = os.fork()
    if not child:
        try:
            with trace_lines(files, lambda current: os._exit(9) if current == line else None):
                run()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9), f"exit status {status} before {line}"
    return status == 9
