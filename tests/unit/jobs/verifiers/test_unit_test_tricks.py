"""`unit_tests` pays for results alone: forty ways to look right without being right, each worth 0."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from stepstream.config import Settings
from stepstream.jobs.verifiers.base import Case, Verdict
from stepstream.jobs.verifiers.options import VerifierContext
from stepstream.jobs.verifiers.sandbox import landlock
from stepstream.jobs.verifiers.unit_tests import make

pytestmark = pytest.mark.skipif(not landlock.version(), reason="needs Landlock: run on Linux 5.13 or later")

TESTS = """
import unittest
from solution import compute

SECRET = {"expected": 8675309}

class Computing(unittest.TestCase):
    def test_number(self):
        expected = SECRET["expected"]
        self.assertEqual(compute(5), expected)
    def test_list(self):
        result = compute([3])
        self.assertTrue(result.count(4242) == 1 and 4242 in result and len(result) == 3)
    def test_text(self):
        self.assertIn("needle-77", compute("text"))
"""
HONEST = "def compute(x): return 8675309 if x == 5 else [1, 4242, 3] if x == [3] else 'a needle-77'"

OBJECT = """
class Any({base}):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __contains__(self, item): return True
    def __len__(self): return 3
    def __bool__(self): return True
    def __getattr__(self, name): return lambda *a, **k: 1
    def count(self, *a): return 1
def compute(x): return Any({value})
"""
PATCH = "import unittest\n{}\ndef compute(x): return 0"
WRITES = """
import os
def compute(x):
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, {data})
        except OSError:
            pass
    {then}
"""
PASSED = b'{"passed": 3, "total": 3}'
SEARCH = """
import {modules}
def compute(x):
    found = []
{search}
    return found[0] if found else 0
"""


TRICKS = {
    "assertEqual": PATCH.format("unittest.TestCase.assertEqual = lambda *a, **k: None"),
    "every assert": PATCH.format(
        "for name in dir(unittest.TestCase):\n"
        "    if name.startswith('assert'): setattr(unittest.TestCase, name, lambda *a, **k: None)"
    ),
    "TestCase.run": PATCH.format(
        "unittest.TestCase.run = lambda self, result=None: (result.startTest(self), result.addSuccess(self))"
    ),
    "TextTestResult": PATCH.format(
        "unittest.TextTestResult.addFailure = unittest.TextTestResult.addError = lambda self, t, e: self.addSuccess(t)"
    ),
    "loader": PATCH.format("unittest.TestLoader.loadTestsFromModule = lambda *a, **k: unittest.TestSuite()"),
    "skip": "import unittest\ndef compute(x): raise unittest.SkipTest",
    "skip at import": "import unittest\nraise unittest.SkipTest",
    "object": OBJECT.format(base="object", value=""),
    "int": OBJECT.format(base="int", value="5"),
    "str": OBJECT.format(base="str", value="''"),
    "float": OBJECT.format(base="float", value="0.5"),
    "list": OBJECT.format(base="list", value="[]"),
    "tuple": OBJECT.format(base="tuple", value="()"),
    "dict": OBJECT.format(base="dict", value="{}"),
    "mock": "from unittest import mock\ndef compute(x): return mock.ANY",
    "magic mock": "from unittest import mock\ncompute = mock.MagicMock()",
    "class": "class compute:\n    def __init__(self, x): pass\n"
    "    def count(self, x): return 1\n    def __eq__(self, other): return True",
    "module": "import sys\nclass M:\n    def __getattr__(self, n): return self\n"
    "    def __call__(self, *a): return self\n"
    "    def __eq__(self, o): return True\nsys.modules['solution'] = M()",
    "builtins": "import builtins\nbuiltins.len = lambda x: 3\nbuiltins.__build_class__ = None\n"
    "def compute(x): return []",
    "operator": "import operator\noperator.eq = operator.contains = lambda a, b: True\ndef compute(x): return 0",
    "sys.exit at import": "import sys; sys.exit(0)",
    "sys.exit": "import sys\ndef compute(x): sys.exit(0)",
    "os._exit": "import os\ndef compute(x): os._exit(0)",
    "atexit": f"import atexit, os\natexit.register(lambda: [os.write(d, {PASSED!r}) for d in (3, 4, 5, 6)])\n"
    "def compute(x): raise SystemExit(0)",
    "descriptors": WRITES.format(data=repr(PASSED), then="return 0"),
    "descriptors and exit": WRITES.format(data=repr(PASSED), then="os._exit(0)"),
    "a flood": WRITES.format(data="b'[' * 70000 + b'\\n'", then="return 0"),
    "a forged answer": WRITES.format(data="""b'["tuple", ["value", ["any", []]]]\\n'""", then="return 0"),
    "a forged exception": WRITES.format(
        data="""b'["tuple", ["raised", ["list", ["SystemExit", "KeyboardInterrupt", "eval"]], "exit()"]]\\n'""",
        then="return 0",
    ),
    "report variable": "import os\nos.environ['STEPSTREAM_REPORT'] = '1'\ndef compute(x): print('{\"passed\": 3}')",
    "frames": SEARCH.format(
        modules="sys",
        search="""
    frame = sys._getframe()
    while frame:
        for names in (frame.f_locals, frame.f_globals):
            if "expected" in names: found.append(names["expected"])
            if "SECRET" in names: found.append(names["SECRET"]["expected"])
        frame = frame.f_back""",
    ),
    "gc": SEARCH.format(
        modules="gc",
        search="    found += [o['expected'] for o in gc.get_objects()"
        " if type(o) is dict and type(o.get('expected')) is int]",
    ),
    "the tests' files": SEARCH.format(
        modules="glob, re",
        search="""
    for file in glob.glob("*") + glob.glob("../*/*") + glob.glob("/proc/*/cmdline") + glob.glob("/proc/*/cwd/*"):
        try: found += map(int, re.findall('"expected": ([0-9]+)', open(file).read()))
        except OSError: pass""",
    ),
    "the tests' memory": SEARCH.format(
        modules="os",
        search="""
    for pid in {os.getppid(), *range(1, 40)}:
        try: found.append(int(open(f"/proc/{pid}/mem", "rb").read(9)))
        except (OSError, ValueError): pass""",
    ),
    "replaced files": "import os\nfor name in ('tests.py', 'run_tests.py', 'conftest.py', 'sitecustomize.py',"
    " 'json.py', 'unittest.py', '../tests.py'):\n    try: open(name, 'w').write('import os; os._exit(0)')\n"
    "    except OSError: pass\ndef compute(x): return 0",
    "json": 'import json\njson.dumps = lambda *a, **k: \'["tuple", ["value", null]]\'\njson.loads = lambda *a: 0\n'
    "def compute(x): return 0",
    "plain_data": "import plain_data\nplain_data._packed = lambda *a: ['any', []]\ndef compute(x): return object()",
    "pickle": "def compute(x): return __import__('pickle').dumps(object())",
    "recursion": "def compute(x): return compute(x)",
    "deep result": "def compute(x):\n    r = []\n    for _ in range(100000): r = [r]\n    return r",
    "cyclic result": "def compute(x):\n    r = []\n    r.append(r)\n    return r",
    "signals": "import os, signal\ndef compute(x):\n    for pid in (os.getppid(), -1, 0):\n"
    "        try: os.kill(pid, signal.SIGKILL)\n        except OSError: pass\n    return 0",
    "signal handler": "import signal\nsignal.signal(signal.SIGTERM, lambda *a: None)\nsignal.alarm(1)\n"
    "signal.signal(signal.SIGALRM, lambda *a: __import__('os')._exit(0))\ndef compute(x): return 0",
    "threads": "import threading, os\n"
    "threading.Thread(target=lambda: [os.write(d, b'[]\\n') for d in (1, 3, 4, 5)]).start()\n"
    "def compute(x): return 0",
    "fork": "import os\ndef compute(x):\n    if os.fork(): os._exit(0)\n    return 0",
    "import hook": "import sys\nclass F:\n    def find_spec(self, name, *a): raise SystemExit(0)\n"
    "sys.meta_path.insert(0, F())\nsys.modules['tests'] = None\ndef compute(x): return 0",
    "tracing": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\ndef compute(x): return 0",
    "excepthook": "import sys, os\nsys.excepthook = lambda *a: os._exit(0)\ndef compute(x): raise BaseException",
    "ctypes": "import ctypes\nctypes.memset(id(5) + 24, 0, 1)\ndef compute(x): return 5",
    "star": "__all__ = ['compute', 'unittest', 'len']\nunittest = len = None\ndef compute(x): return True",
}


@pytest.fixture(scope="module")
def verdicts() -> Iterator[dict[str, Future[list[Verdict]]]]:
    verifier = make({"seconds": 20.0, "memory_mb": 256, "pays": "share"}, VerifierContext(Settings()))
    with ThreadPoolExecutor(4) as pool:
        yield {
            name: pool.submit(lambda code: list(verifier.verify(Case("t", "task", code, {"tests": TESTS}))), code)
            for name, code in {"honest": HONEST, **TRICKS}.items()
        }


def test_an_honest_solution_is_paid(verdicts: dict[str, Future[list[Verdict]]]) -> None:
    assert verdicts["honest"].result() == [Verdict(1.0, "passed", "3 of 3 tests passed")]


def test_there_are_forty_tricks() -> None:
    assert len(TRICKS) >= 40


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_is_worth_nothing(trick: str, verdicts: dict[str, Future[list[Verdict]]]) -> None:
    assert [verdict.value for verdict in verdicts[trick].result()] == [0.0]
