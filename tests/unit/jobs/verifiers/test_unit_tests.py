"""`unit_tests`: what passes, and what only looks as if."""

from typing import Any

import pytest

from stepstream.config import Settings
from stepstream.jobs.verifiers.base import Case, UnverifiableCase, Verdict
from stepstream.jobs.verifiers.options import VerifierContext
from stepstream.jobs.verifiers.sandbox import landlock
from stepstream.jobs.verifiers.unit_tests import count_declared_tests, make

pytestmark = pytest.mark.skipif(not landlock.version(), reason="needs Landlock: run on Linux 5.13 or later")

TESTS = """
import unittest
from solution import add

class Adding(unittest.TestCase):
    def test_small(self):
        self.assertEqual(add(1, 2), 3)
    def test_negative(self):
        self.assertEqual(add(-1, -2), -3)
    def test_text(self):
        self.assertEqual(add("a", "b"), "ab")
"""


GUESSING = """
import os
for descriptor in range(3, 12):
    try:
        os.write(descriptor, REPORT)
    except OSError:
        pass
os._exit(0)
"""


def verdict(code: str, tests: Any = TESTS, **options: Any) -> Verdict:
    verifier = make({"seconds": 20.0, "memory_mb": 256} | options, VerifierContext(Settings()))
    [found] = verifier.verify(Case("t", "task", code, {"tests": tests}))
    return found


def test_code_that_passes_is_right() -> None:
    assert verdict("def add(a, b): return a + b") == Verdict(1.0, "passed", "3 of 3 tests passed")


def test_some_tests_are_worth_nothing_or_their_share() -> None:
    code = "def add(a, b): return int(a) + int(b)"
    assert verdict(code) == Verdict(0.0, "failed", "2 of 3 tests passed")
    assert verdict(code, pays="share").value == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("import os; os._exit(0)", "no_report"),
        ("import sys; sys.exit(0)", "no_report"),
        ("def add(a, b): import os; os._exit(0)", "no_report"),
        ("raise SystemExit(3)", "failed"),
        ("def add(:", "failed"),
        ("import unittest; unittest.TestLoader.loadTestsFromModule = lambda *a, **k: unittest.TestSuite()", "failed"),
        ("import unittest\ndef add(a, b): raise unittest.SkipTest", "failed"),
        (GUESSING.replace("REPORT", "b'[' * 5000"), "no_report"),
        (GUESSING.replace("REPORT", "b'{}'"), "no_report"),
        ("", "no_code"),
    ],
)
def test_exiting_and_skipping_do_not_pass(code: str, word: str) -> None:
    assert (verdict(code).value, verdict(code).category) == (0.0, word)


def test_a_loop_is_stopped() -> None:
    assert verdict("while True: pass", seconds=1.0).category == "timeout"


def test_another_command_decides_by_its_status() -> None:
    shell = {"command": ("/bin/sh", "tests"), "file": "solution.sh"}
    assert verdict("echo 4", 'test "$(sh solution.sh)" = 4', **shell).value == 1
    assert verdict("echo 5", 'test "$(sh solution.sh)" = 4', **shell).category == "failed"


def test_a_task_without_tests_cannot_be_judged() -> None:
    with pytest.raises(UnverifiableCase):
        verdict("x", tests=None)


def test_declared_tests_are_counted() -> None:
    assert count_declared_tests(TESTS) == 3
    assert count_declared_tests("def test_alone(): pass") == 0
    assert count_declared_tests("this is not Python") == 0
