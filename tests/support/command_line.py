"""The command line in the test's own process: starting one for each command costs seconds of imports.

Tests of what is a process's own (signals, exit, what a stack on demand does) start a real one.
"""

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

from stepstream.cli.main import run
from stepstream.config import Settings, environment_of


@dataclass(frozen=True)
class Done:
    """What a command left."""

    status: int
    stdout: str
    stderr: str


def stepstream(settings: Settings, *words: str) -> Done:
    """`stepstream WORDS` with exactly these settings."""
    out, err = io.StringIO(), io.StringIO()
    with patch.dict(os.environ, environment_of(settings)), redirect_stdout(out), redirect_stderr(err):
        try:
            status = run(words)
        except SystemExit as end:
            status = int(end.code or 0)
    return Done(status, out.getvalue(), err.getvalue())
