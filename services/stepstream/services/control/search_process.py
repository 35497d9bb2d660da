"""Search for a proposal in a process of its own, so that the controller goes on to decide, and can end it at any time.

The interface of an optimiser, `propose(view, parent, budget)`, lies below: the process reads the view and runs the
optimisers that the settings allow. It publishes nothing; the controller publishes what it finds.
"""

import logging
import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import orjson

from stepstream.analytics.estimate import Estimate
from stepstream.services.control.decide.records import Shadow
from stepstream.services.control.scope import Scope
from stepstream.topics.events import Harness

log = logging.getLogger(__name__)

MODULE = "stepstream.services.control.optimise"
_END_S = 10.0
_SPENT = struct.Struct("<qq")


class Spent(NamedTuple):
    """Model calls and tokens that searches for one decision have spent."""

    calls: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search."""

    record: Harness | None
    """Version to propose; None: none, for `reason`."""
    reason: str
    is_fault: bool = False
    """True if the search failed, so that nothing is known about better versions."""
    calls: int = 0
    tokens: int = 0
    shadow: Shadow | None = None
    """Result of a shadow replay of new weights; None: it was another search, or a fault."""


class SearchProcess(AbstractContextManager["SearchProcess"]):
    """At most one search at a time. Use it from one thread; leaving the context ends a search."""

    def __init__(self, module: str = MODULE) -> None:
        """`module`: the program that searches."""
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._spent: IO[bytes] | None = None
        self.decision_id = ""
        """Decision that the search is for; empty: none runs."""

    def start(
        self,
        decision_id: str,
        scope: Scope,
        versions: Mapping[str, Harness],
        spent: Spent,
        task: Mapping[str, Any] | None = None,
    ) -> None:
        """Start a search for a decision, while none runs.

        Args:
            decision_id: the decision.
            scope: agent and tenant.
            versions: the agent's harness versions.
            spent: what searches for the decision have spent before.
            task: further fields that the program reads.
        """
        self._output, self._spent = _memory_file(), _memory_file()
        write_spent(self._spent.fileno(), *spent)
        fields = {"parent": os.getpid(), "tenant": scope.tenant, "agent": scope.agent, "versions": versions}
        fields |= {**spent._asdict(), "spent": self._spent.fileno(), **(task or {})}
        with _memory_file() as task_file:
            task_file.write(orjson.dumps(fields))
            task_file.seek(0)
            command = [sys.executable, "-m", self._module]
            descriptors = (self._spent.fileno(),)
            self._process = subprocess.Popen(command, stdin=task_file, stdout=self._output, pass_fds=descriptors)
        self.decision_id = decision_id
        log.info("process %d runs %s for agent %s", self._process.pid, self._module, scope.agent)

    def poll(self) -> SearchResult | None:
        """Return the result of the search once it has ended; None: it runs."""
        assert self._process is not None
        assert self._output is not None
        status = self._process.poll()
        if status is None:
            return None
        self._output.seek(0)
        found = _result(self._output.read(), status)
        self.cancel()
        return found

    def spent(self) -> Spent:
        """Return what searches for the decision have spent, this one and those before it."""
        assert self._spent is not None
        return Spent(*_SPENT.unpack(os.pread(self._spent.fileno(), _SPENT.size, 0)))

    def cancel(self) -> None:
        """End a running search; what it found is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_END_S)
        for file in (self._output, self._spent):
            if file is not None:
                file.close()
        self._process, self._output, self._spent, self.decision_id = None, None, None, ""

    def __exit__(self, *_: object) -> None:
        self.cancel()


def write_spent(file: int, calls: int, tokens: int) -> None:
    """Write what a search has spent to a file descriptor, where `SearchProcess.spent` reads it."""
    os.pwrite(file, _SPENT.pack(calls, tokens), 0)


def _memory_file() -> IO[bytes]:
    """Return a file in memory: a pipe may be too small for a result, and a killed controller leaves a file on disk."""
    return os.fdopen(os.memfd_create("search"), "w+b")


def _result(output: bytes, status: int) -> SearchResult:
    if status:
        text = f"the search ended with status {status}: see the log of the controller, at control-search or -shadow"
        return SearchResult(None, text, is_fault=True)
    found: dict[str, Any] = orjson.loads(output)
    if "fault" in found:
        return SearchResult(None, found["fault"], is_fault=True)
    shadow = found.get("shadow")
    result = None if shadow is None else Shadow(Estimate(**shadow["difference"]), shadow["worse"])
    return SearchResult(found["record"], found["reason"], calls=found["calls"], tokens=found["tokens"], shadow=result)
