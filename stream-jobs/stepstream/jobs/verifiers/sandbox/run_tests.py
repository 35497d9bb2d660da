"""Run the module `tests` with unittest, and report how many passed. It is copied into the tests' sandbox.

Arguments: the name of the solution's module, and a JSON array of its declared classes. The module that the tests
import is a stand-in: it sends calls to another process, which has the agent's code, and gets plain data back. So
nothing of the agent's runs where its tests are judged.
"""

import builtins
import json
import os
import sys
import types
import unittest
from typing import Any, NoReturn

sys.path.insert(0, os.getcwd())

import plain_data  # type: ignore[import-not-found]


class SolutionError(BaseException):
    """The solution gave no usable answer. Neither `assertRaises(Exception)` nor `except Exception` accepts it."""


class _Connection:
    """Sends requests to the solution's process and reads its answers."""

    def __init__(self) -> None:
        self._answers, self._requests = os.fdopen(os.dup(0), "rb"), os.dup(1)
        os.dup2(2, 1)  # prints of the tests are output, not requests

    def ask(self, *request: Any) -> Any:
        """Return the answer; raises what the solution raised if it is a built-in exception."""
        try:
            line = plain_data.encode(request)
            while line:
                line = line[os.write(self._requests, line) :]
            answer = plain_data.decode(self._answers.readline(plain_data.MAX_LINE_BYTES + 1))
        except plain_data.NotPlainData as error:
            raise SolutionError(f"{error}: only plain data can be exchanged") from None
        except OSError:
            raise SolutionError("the solution has ended") from None
        if type(answer) is not tuple or not answer:
            raise SolutionError("not an answer")
        if answer[0] == "raised":
            _raise(answer)
        if answer[0] == "unusable":
            raise SolutionError(answer[1:])
        return answer


def _raise(answer: Any) -> NoReturn:
    try:
        _, names, text = answer
        kinds = [getattr(builtins, name) for name in names if type(name) is str and hasattr(builtins, name)]
        kind = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception))
        error = kind(text)
    except Exception:
        raise SolutionError("it raised what is no built-in exception") from None
    raise error


class _Solution(types.ModuleType):
    """The module that the tests import."""

    def __init__(self, name: str, connection: _Connection, classes: list[str]) -> None:
        super().__init__(name)
        self.__dict__["_ask"], self.__dict__["_classes"] = connection.ask, classes

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            raise SolutionError("import the solution's names one by one, not *")
        if name.startswith("_"):
            raise AttributeError(name)
        ask = self._ask
        if name in self._classes:

            def create(*args: Any, **kwargs: Any) -> "_Object":
                match ask("new", name, args, kwargs):
                    case ("object", int(number)):
                        return _Object(ask, number)
                raise SolutionError("not an answer")

            return create
        match ask("get", name):
            case ("value", value):
                return value
            case ("callable",):
                return lambda *args, **kwargs: _value(ask("call", 0, name, args, kwargs))
        raise SolutionError("not an answer")


class _Object:
    """Object of one of the solution's declared classes: methods to call, and nothing else.

    It has no operators: `==`, `<` or `in` would let the agent's code decide what a test asserts.
    """

    __slots__ = ("_ask", "_number")

    def __init__(self, ask: Any, number: int) -> None:
        self._ask, self._number = ask, number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: _value(self._ask("call", self._number, name, args, kwargs))


def _value(answer: Any) -> Any:
    match answer:
        case ("value", value):
            return value
    raise SolutionError("not an answer")


class _Counting(unittest.TextTestResult):
    """Counts the tests that succeeded, which unittest does not."""

    passed = 0

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        self.passed += 1
        super().addSuccess(test)


def main() -> None:
    """Run the tests; always exit with status 0, because the report has the result."""
    report = int(os.environ.pop("STEPSTREAM_REPORT"))
    name, classes = sys.argv[1], json.loads(sys.argv[2])
    sys.modules[name] = _Solution(name, _Connection(), classes)
    passed = total = 0
    try:
        suite = unittest.defaultTestLoader.loadTestsFromName("tests")
        total = suite.countTestCases()
        runner = unittest.TextTestRunner(resultclass=_Counting, verbosity=0)  # type: ignore[arg-type]
        result = runner.run(suite)
        assert isinstance(result, _Counting)
        passed = result.passed
    except SolutionError as error:
        print(error, file=sys.stderr)
    os.write(report, json.dumps({"passed": passed, "total": total}).encode())


if __name__ == "__main__":
    main()
