"""Run the command line in the test's process: a new process costs seconds of imports for each command.

Tests of signals, exits and stacks on demand start a real process instead.
"""

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

from stepstream.cli.main import run
from stepstream.config import Settings, environment_of


@dataclass(frozen=True)
class CommandResult:
    """Result of a command."""

    status: int
    stdout: str
    stderr: str


def stepstream(settings: Settings, *words: str) -> CommandResult:
    """Run `stepstream WORDS` with exactly these settings."""
    out, err = io.StringIO(), io.StringIO()
    with patch.dict(os.environ, environment_of(settings)), redirect_stdout(out), redirect_stderr(err):
        try:
            status = run(words)
        except SystemExit as end:
            status = int(end.code or 0)
    return CommandResult(status, out.getvalue(), err.getvalue())
