"""The verifier `unit_tests`: the agent's code passes the task's tests, in a sandbox.

The task has `tests` in the file of expected values: a unittest module that imports `solution`. The value is 1 for
passing all tests, or the share that passed. The tests run in one sandboxed process, the agent's code in another: calls
and results cross as plain data (`sandbox.plain_data`), so the code can neither see what a test expects nor change how
it compares. Nothing but the answers to the tests' calls counts.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Literal

import orjson
from pydantic import Field

from stepstream.jobs.verifiers.base import Case, Source, Verdict
from stepstream.jobs.verifiers.options import (
    InvalidOptions,
    Options,
    VerifierContext,
    expected_value,
    parse_options,
)
from stepstream.jobs.verifiers.sandbox.limits import Confinement, Limits, Run
from stepstream.jobs.verifiers.sandbox.pair import Program, run_pair
from stepstream.jobs.verifiers.sandbox.run import run

_SANDBOX = resources.files("stepstream.jobs.verifiers.sandbox")
_PLAIN_DATA, _RUN_SOLUTION, _RUN_TESTS = (
    _SANDBOX.joinpath(f"{name}.py").read_text("utf-8") for name in ("plain_data", "run_solution", "run_tests")
)


class UnitTestsOptions(Options):
    """Options of `unit_tests`."""

    file: str = Field("solution.py", pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
    """Name of the code's file, under which the tests import it."""
    command: tuple[str, ...] = ()
    """Judge: a command with an absolute path, run in a folder with the file `tests`; status 0 means right. Its standard
    input and output are those of `program`. Empty: the tests are a unittest module.
    """
    program: tuple[str, ...] = ()
    """Command with an absolute path that runs the solution in a folder with `file`; needed with `command`."""
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
        classes = expected_value(case.expected.get("classes", []), list, "classes")
        if not case.observed.strip():
            return [Verdict(0.0, "no_code")]
        options = self._options
        judge = Program({"tests": tests}, options.command)
        solution = Program({options.file: case.observed}, options.program)
        if not options.command:
            module = options.file.removesuffix(".py")
            judge = Program(
                {"tests.py": tests, "plain_data.py": _PLAIN_DATA, "run_tests.py": _RUN_TESTS},
                [sys.executable, "-I", "run_tests.py", module, orjson.dumps(classes).decode()],
            )
            solution = Program(
                {options.file: case.observed, "plain_data.py": _PLAIN_DATA, "run_solution.py": _RUN_SOLUTION},
                [sys.executable, "-I", "run_solution.py", module],
            )
        judged, solved = run_pair(judge, solution, self._limits, self._confinement)
        if solved.ended not in ("exited", "stopped"):
            return [Verdict(0.0, solved.ended, _description(solved))]
        return [self._by_status(judged) if options.command else self._by_count(judged)]

    def try_sandbox(self) -> None:
        """Run an empty program to check the sandbox.

        Raises:
            SandboxError: it does not work; the message gives the missing feature.
        """
        run({}, [sys.executable, "-I", "-S", "-c", ""], self._limits, self._confinement)

    def _by_status(self, judged: Run) -> Verdict:
        passed = judged.ended == "exited" and judged.status == 0
        return Verdict(float(passed), "passed" if passed else _category(judged), _description(judged))

    def _by_count(self, judged: Run) -> Verdict:
        report = _parse_report(judged.report) if judged.ended == "exited" else None
        if report is None:
            return Verdict(0.0, _category(judged), _description(judged))
        passed, total = report
        share = passed / max(total, 1)
        paid = share if self._options.pays == "share" else float(share == 1.0)
        return Verdict(paid, "passed" if share == 1.0 else "failed", f"{passed} of {total} tests passed")


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
    """Create the verifier from its options.

    Raises:
        InvalidOptions: they are invalid.
    """
    parsed = parse_options(UnitTestsOptions, options)
    if bool(parsed.command) != bool(parsed.program):
        raise InvalidOptions(
            "command judges what program answers: set both (program = the command that runs the solution, "
            f'e.g. ["/bin/sh", "{parsed.file}"]), or neither'
        )
    return UnitTests(parsed, context.settings.verify.sandbox)
