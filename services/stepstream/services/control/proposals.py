"""Carry out decisions to propose: start a search, wait for it, and return the records that write what it found.

1. A decision waits until no other search runs. The act `started` marks the begin, from which the time is bounded.
2. The search runs in a process of its own. Acts `started` count what it spends. A controller that takes over starts it
   again, with the rest of its calls and tokens: the search writes nothing.
3. A found version and the act `done` are one transaction. Else the act is `failed`, with the reason.
"""

from contextlib import AbstractContextManager

from stepstream.config import OptimiseSettings, Settings
from stepstream.services.control import acts, metrics
from stepstream.services.control.acts import Record
from stepstream.services.control.history import DecisionLog
from stepstream.services.control.scope import Serving, scope_of
from stepstream.services.control.search_process import SearchProcess, SearchResult, Spent
from stepstream.services.control.undo import HARNESS_LEVERS
from stepstream.topics.events import Decision

_SPENT_PARTS = 20
"""Parts of a search's calls after which what it has spent is written: few records, and little is lost in a crash."""


def is_search(decision: Decision) -> bool:
    """Return True if a search carries out the decision."""
    return decision["action"] == "propose" and decision["lever"] in HARNESS_LEVERS


class Proposals(AbstractContextManager["Proposals"]):
    """Searches of a controller, one at a time. Use it from one thread; leaving the context ends a search."""

    def __init__(self, settings: Settings, process: SearchProcess | None = None) -> None:
        self._settings, self._process = settings.control, process or SearchProcess()
        self._limits: OptimiseSettings = settings.optimise

    def __exit__(self, *_: object) -> None:
        self._process.cancel()

    def advance(self, decision: Decision, log: DecisionLog, serving: Serving, at_us: int, fault: str) -> list[Record]:
        """Return the records to publish now about a decision to propose that is approved; never blocks.

        Args:
            decision: one that `is_search` names.
            log: all decisions and acts.
            serving: what serves its scope now.
            at_us: time of the acts.
            fault: reason to end it, for example that the agent is frozen; empty: none.
        """
        earlier = log.acts_of(decision["event_id"])
        began_us = next((one["occurred_at_us"] for one in earlier), None)
        known = max((Spent(one["calls"], one["tokens"]) for one in earlier), default=Spent())
        is_running = self._process.decision_id == decision["event_id"]
        if not fault and began_us is not None and at_us - began_us > self._settings.propose_timeout_s * 1e6:
            fault = (
                f"the search took longer than {self._settings.propose_timeout_s:g} s: "
                "raise control.propose_timeout_s, or lower optimise.calls"
            )
        if fault:
            if is_running:
                self._process.cancel()
            return self._end(decision, serving, at_us, SearchResult(None, fault, is_fault=True))
        if is_running:
            found = self._process.poll()
            return self._spend(decision, at_us, known) if found is None else self._end(decision, serving, at_us, found)
        if self._process.decision_id:
            return []
        if known.calls >= self._limits.calls or known.tokens >= self._limits.tokens:
            fault = (
                f"the search was interrupted after {known.calls} of {self._limits.calls} calls and {known.tokens} of "
                f"{self._limits.tokens} tokens: see the log of the controller, or raise optimise.calls and .tokens"
            )
            return self._end(decision, serving, at_us, SearchResult(None, fault, is_fault=True))
        self._process.start(decision["event_id"], scope_of(decision), serving.harnesses, known)
        metrics.SEARCHING.set(1)
        return [acts.begin(decision, at_us)] if began_us is None else []

    def _spend(self, decision: Decision, at_us: int, known: Spent) -> list[Record]:
        """Return the record of what the running search has spent, if that is much more than the log has."""
        now = self._process.spent()
        if now.calls - known.calls < max(1, self._limits.calls // _SPENT_PARTS):
            return []
        return [acts.spend(decision, at_us, *now)]

    def _end(self, decision: Decision, serving: Serving, at_us: int, found: SearchResult) -> list[Record]:
        metrics.SEARCHING.set(1 if self._process.decision_id else 0)
        if found.record is not None:
            records = acts.propose(decision, serving, found.record, at_us)
        else:
            reason = found.reason if found.is_fault else f"nothing is proposed: {found.reason}"
            records = [acts.end(decision, "failed", at_us, reason=reason)]
        is_proposed = records[-1].value["state"] == "done"
        result = "proposed" if is_proposed else "failed" if found.is_fault or found.record else "nothing"
        metrics.count_search(result, found.calls, found.tokens)
        return records
