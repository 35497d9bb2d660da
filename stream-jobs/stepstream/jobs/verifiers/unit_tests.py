"""`unit_tests`: the agent's code passes the task's tests, in a sandbox.

The task has `tests` in the file of expected values: a module of unittest that imports `solution`. What is paid is all
tests or their share. A run that ends without its report, as by leaving inside a test, is worth nothing: passing has to
be told at the end. The code and its tests share a process, so code that looks for the report can write one itself;
where agents try that, use `command` with tests that run the solution as a program of its own.
"""

import ast
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Literal

import orjson
from pydantic import Field

from stepstream.jobs.verifiers.base import Case, Source, Verdict
from stepstream.jobs.verifiers.options import Options, Surroundings, expected, read
from stepstream.jobs.verifiers.sandbox.limits import Confinement, Limits, Run
from stepstream.jobs.verifiers.sandbox.run import run

_RUNNER = resources.files("stepstream.jobs.verifiers.sandbox").joinpath("run_tests.py").read_text("utf-8")


class UnitTestsOptions(Options):
    """Options of `unit_tests`."""

    file: str = Field("solution.py", pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
    """Name under which the tests find the code."""
    command: tuple[str, ...] = ()
    """Command, by its absolute path, to run in the folder with `file` and `tests`; right where it exits with 0. Empty:
    the tests are a module of unittest's."""
    pays: Literal["all", "share"] = "all"
    """1 for passing all tests alone, or the share that passed."""
    seconds: float = Field(10.0, gt=0, le=600)
    """Wall time; of each process, as much time of the processor."""
    memory_mb: int = Field(512, ge=64)
    file_mb: int = Field(16, ge=1)
    output_bytes: int = Field(65_536, ge=1)
    processes: int = Field(16, ge=1)
    open_files: int = Field(64, ge=16)


class UnitTests:
    """Runs tests."""

    source: Source = "test"
    reads_trajectory = False

    def __init__(self, options: UnitTestsOptions, confinement: Confinement) -> None:
        """`confinement`: what the sandbox must guarantee before anything is run."""
        self._options, self._confinement = options, confinement
        self._limits = Limits(
            wall_s=options.seconds,
            cpu_s=max(1, round(options.seconds)),
            memory_mb=options.memory_mb,
            file_mb=options.file_mb,
            output_bytes=options.output_bytes,
            processes=options.processes,
            open_files=options.open_files,
        )

    def verify(self, case: Case) -> Sequence[Verdict]:
        """The share of tests that passed, or 1 for all of them.

        Raises:
            SandboxError: the sandbox cannot give what `verify.sandbox` demands; nothing was run.
        """
        tests = expected(case.expected.get("tests"), str, "tests")
        if not case.observed.strip():
            return [Verdict(0.0, "no_code")]
        files = {self._options.file: case.observed, "tests": tests}
        if self._options.command:
            ended = run(files, self._options.command, self._limits, self._confinement)
            passed = ended.ended == "exited" and ended.status == 0
            return [Verdict(float(passed), "passed" if passed else _word(ended), _told(ended))]
        files = {self._options.file: case.observed, "tests.py": tests, "run_tests.py": _RUNNER}
        ended = run(files, [sys.executable, "-I", "run_tests.py"], self._limits, self._confinement)
        return [self._counted(ended, tests)]

    def try_sandbox(self) -> None:
        """Runs nothing in the sandbox, to find out whether it can be had.

        Raises:
            SandboxError: it cannot; the message says what is missing.
        """
        run({}, [sys.executable, "-I", "-S", "-c", ""], self._limits, self._confinement)

    def _counted(self, ended: Run, tests: str) -> Verdict:
        report = _report(ended.report) if ended.ended == "exited" else None
        if report is None:
            return Verdict(0.0, _word(ended), _told(ended))
        passed, total = report[0], max(report[1], declared(tests), 1)
        share = min(1.0, max(0, passed) / total)
        paid = share if self._options.pays == "share" else float(share == 1.0)
        return Verdict(paid, "passed" if share == 1.0 else "failed", f"{passed} of {total} tests passed")


def declared(tests: str) -> int:
    """Tests that a module declares, so that code cannot make them fewer by what it does when it is imported."""
    try:
        tree = ast.parse(tests)
    except (SyntaxError, ValueError):
        return 0
    return sum(
        isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and member.name.startswith("test")
        for part in ast.walk(tree)
        if isinstance(part, ast.ClassDef) and part.bases
        for member in part.body
    )


def _report(written: bytes) -> tuple[int, int] | None:
    try:
        told = orjson.loads(written)
        passed, total = told["passed"], told["total"]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return None
    return (passed, total) if type(passed) is int and type(total) is int else None


def _word(ended: Run) -> str:
    if ended.ended != "exited":
        return ended.ended
    return "failed" if ended.status else "no_report"


def _told(ended: Run) -> str:
    return f"{ended.ended} with status {ended.status} after {ended.wall_s:.1f} s"


def make(options: Mapping[str, Any], surroundings: Surroundings) -> UnitTests:
    """From options."""
    return UnitTests(read(UnitTestsOptions, options), surroundings.settings.verify.sandbox)
