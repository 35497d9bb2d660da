"""`unit_tests`: what passes, and what only looks as if."""

from typing import Any

import pytest

from stepstream.config import Settings
from stepstream.jobs.verifiers.base import Case, UnverifiableCase, Verdict
from stepstream.jobs.verifiers.options import InvalidOptions, VerifierContext
from stepstream.jobs.verifiers.sandbox import landlock
from stepstream.jobs.verifiers.unit_tests import make

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


def test_code_that_cannot_be_imported_fails() -> None:
    found = verdict("def add(:")
    assert (found.value, found.category) == (0.0, "failed")
    assert verdict("") == Verdict(0.0, "no_code")


def test_a_loop_is_stopped() -> None:
    assert verdict("while True: pass", seconds=1.0).category == "timeout"


def test_another_command_judges_what_the_program_answers() -> None:
    shell = {"command": ("/bin/sh", "tests"), "file": "solution.sh", "program": ("/bin/sh", "solution.sh")}
    tests = 'echo 2 2; read -r answer; test "$answer" = 4'
    assert verdict("read -r a b; echo $((a + b))", tests, **shell).value == 1
    assert verdict("echo 5", tests, **shell).category == "failed"
    assert verdict("cat tests; cat ../*/tests; exit 0", tests, **shell).value == 0


def test_a_command_without_a_program_is_refused() -> None:
    with pytest.raises(InvalidOptions, match="program"):
        verdict("echo 4", command=("/bin/sh", "tests"))


def test_values_of_the_plain_types_cross() -> None:
    values = [None, True, -(10**40), 1.5, float("inf"), "ä\ud800", b"\0", [1], (1, (2,)), {(1, 2): {3}}, frozenset("a")]
    lines = "".join(f"        self.assertEqual(solution.same({v!r}), {v!r})\n" for v in values if v != float("inf"))
    tests = f"""
import unittest, solution
class Same(unittest.TestCase):
    def test_values(self):
{lines}        self.assertEqual(solution.same(float("inf")), float("inf"))
        self.assertIs(type(solution.same((1,))), tuple)
        self.assertEqual(solution.LIMIT, 7)
    def test_error(self):
        with self.assertRaisesRegex(ValueError, "negative"):
            solution.fail(-1)
"""
    code = """
LIMIT = 7
class Negative(ValueError): pass
def same(value): return value
def fail(value): raise Negative("a negative value")
"""
    assert verdict(code, tests) == Verdict(1.0, "passed", "2 of 2 tests passed")


def test_declared_classes_have_methods() -> None:
    tests = """
import unittest
from solution import Stack
class Pushing(unittest.TestCase):
    def test_order(self):
        one, other = Stack(), Stack(size=2)
        one.push(1), one.push(2), other.push(3)
        self.assertEqual([one.pop(), one.pop(), other.pop()], [2, 1, 3])
"""
    code = """
class Stack:
    def __init__(self, size=0): self.items = []
    def push(self, item): self.items.append(item)
    def pop(self): return self.items.pop()
"""
    assert verdict(code, tests).value == 0, "an undeclared class is no plain data"
    verifier = make({"seconds": 20.0}, VerifierContext(Settings()))
    [found] = verifier.verify(Case("t", "task", code, {"tests": tests, "classes": ["Stack"]}))
    assert found == Verdict(1.0, "passed", "1 of 1 tests passed")


def test_a_task_without_tests_cannot_be_judged() -> None:
    with pytest.raises(UnverifiableCase):
        verdict("x", tests=None)
