"""The verifier `unit_tests`: the agent's code passes the task's tests, in a sandbox.

The task has `tests` in the file of expected values: a unittest module that imports `solution`. The value is 1 for
passing all tests, or the share that passed. A run without a report (the code exits inside a test) is worth 0. The code
and its tests share a process, so code that searches for the report can forge one. If agents try that, use `command`
with tests that run the solution as a program of its own.
"""

import ast
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Literal

import orjson
from pydantic import Field

from stepstream.jobs.verifiers.base import Case, Source, Verdict
from stepstream.jobs.verifiers.options import Options, VerifierContext, expected_value, parse_options
from stepstream.jobs.verifiers.sandbox.limits import Confinement, Limits, Run
from stepstream.jobs.verifiers.sandbox.run import run

_RUNNER = resources.files("stepstream.jobs.verifiers.sandbox").joinpath("run_tests.py").read_text("utf-8")


class UnitTestsOptions(Options):
    """Options of `unit_tests`."""

    file: str = Field("solution.py", pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
    """Name of the code's file, under which the tests import it."""
    command: tuple[str, ...] = ()
    """Command with an absolute path, to run in the folder with `file` and `tests`; status 0 means right. Empty: the
    tests are a unittest module.
    """
    pays: Literal["all", "share"] = "all"
    """`all`: 1 for passing all tests, else 0; `share`: the share that passed."""
    seconds: float = Field(10.0, gt=0, le=600)
    """Wall time; also the limit of processor time of each process."""
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
        """Create it; `confinement` is the least isolation required to run code."""
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
        """Return the share of tests that passed, or 1 for all of them.

        Raises:
            SandboxError: the sandbox lacks the isolation of `verify.sandbox`; no code ran.
        """
        tests = expected_value(case.expected.get("tests"), str, "tests")
        if not case.observed.strip():
            return [Verdict(0.0, "no_code")]
        files = {self._options.file: case.observed, "tests": tests}
        if self._options.command:
            ended = run(files, self._options.command, self._limits, self._confinement)
            passed = ended.ended == "exited" and ended.status == 0
            return [Verdict(float(passed), "passed" if passed else _category(ended), _description(ended))]
        files = {self._options.file: case.observed, "tests.py": tests, "run_tests.py": _RUNNER}
        ended = run(files, [sys.executable, "-I", "run_tests.py"], self._limits, self._confinement)
        return [self._counted(ended, tests)]

    def try_sandbox(self) -> None:
        """Run an empty program to check the sandbox.

        Raises:
            SandboxError: it does not work; the message gives the missing feature.
        """
        run({}, [sys.executable, "-I", "-S", "-c", ""], self._limits, self._confinement)

    def _counted(self, ended: Run, tests: str) -> Verdict:
        report = _parse_report(ended.report) if ended.ended == "exited" else None
        if report is None:
            return Verdict(0.0, _category(ended), _description(ended))
        passed, total = report[0], max(report[1], count_declared_tests(tests), 1)
        share = min(1.0, max(0, passed) / total)
        paid = share if self._options.pays == "share" else float(share == 1.0)
        return Verdict(paid, "passed" if share == 1.0 else "failed", f"{passed} of {total} tests passed")


def count_declared_tests(tests: str) -> int:
    """Count the tests that a module declares: code must not reduce them when it is imported."""
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


def _parse_report(written: bytes) -> tuple[int, int] | None:
    try:
        report = orjson.loads(written)
        passed, total = report["passed"], report["total"]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return None
    return (passed, total) if type(passed) is int and type(total) is int else None


def _category(ended: Run) -> str:
    if ended.ended != "exited":
        return ended.ended
    return "failed" if ended.status else "no_report"


def _description(ended: Run) -> str:
    return f"{ended.ended} with status {ended.status} after {ended.wall_s:.1f} s"


def make(options: Mapping[str, Any], context: VerifierContext) -> UnitTests:
    """Create the verifier from its options."""
    return UnitTests(parse_options(UnitTestsOptions, options), context.settings.verify.sandbox)
