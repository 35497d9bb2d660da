"""Print a line of progress every 20 s while tests run in several processes.

The first tests take minutes and print few dots, so dots alone do not show that the run goes on.
"""

import time

import pytest

EVERY_S = 20.0


def line(done: int, collected: int, seconds: float, path: str) -> str:
    """Return the line of progress; `path` is the file of the test that ended last."""
    return f"== {100 * done // max(collected, 1):3} %  {done} of {collected} tests  {seconds / 60:4.1f} min  {path}"


class Progress:
    """Counts the tests that ended."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter
        self._session: pytest.Session | None = None
        self._done: set[str] = set()
        self._began_s = self._printed_s = time.monotonic()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown" or self._session is None:
            return
        self._done.add(report.nodeid)
        now_s = time.monotonic()
        if now_s - self._printed_s >= EVERY_S:
            self._printed_s = now_s
            path = report.nodeid.partition("::")[0]
            self._reporter.ensure_newline()
            collected = self._session.testscollected
            self._reporter.write_line(line(len(self._done), collected, now_s - self._began_s, path))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Watch the run in the process that prints, if others run the tests."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Progress(reporter), "stepstream-progress")
