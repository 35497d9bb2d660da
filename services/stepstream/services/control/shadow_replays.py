"""Carry out the shadow replays of canaries that serve nobody yet: start one, wait for it, and return its record.

1. The act of the canary's decision lets workers load the version; its share is 0. One replay runs at a time.
2. The replay runs in a process of its own, which publishes nothing. A controller that takes over starts it again.
3. Its result is a second act `done` of the decision, with evidence: the canary is judged by it at each look. A replay
   that was not possible, or takes too long, has a result without a figure; the policy says what follows from it.
"""

from contextlib import AbstractContextManager

from stepstream.analytics.estimate import undefined
from stepstream.config import Settings
from stepstream.services.control import acts
from stepstream.services.control.acts import Record
from stepstream.services.control.decide.records import Canary, Shadow
from stepstream.services.control.history import DecisionLog
from stepstream.services.control.scope import Scope, Serving
from stepstream.services.control.search_process import SearchProcess, SearchResult, Spent
from stepstream.topics.events import Decision

MODULE = "stepstream.services.control.optimise.weights"


class ShadowReplays(AbstractContextManager["ShadowReplays"]):
    """Shadow replays of a controller, one at a time. Use it from one thread; leaving the context ends one."""

    def __init__(self, settings: Settings, process: SearchProcess | None = None) -> None:
        self._process = process or SearchProcess(MODULE)
        self._limit_us = round(settings.control.shadow_timeout_s * 1e6)
        self._scope: Scope | None = None
        """Scope of the replay that runs."""

    def __exit__(self, *_: object) -> None:
        self._process.cancel()

    def advance(
        self, scope: Scope, canary: Canary | None, log: DecisionLog, serving: Serving, at_us: int
    ) -> list[Record]:
        """Return the record to publish now about the scope's canary; never blocks.

        Args:
            scope: whose.
            canary: its running canary; None: there is none.
            log: all decisions and acts.
            serving: what serves the scope now.
            at_us: time of the act.
        """
        decision = None
        if canary is not None and canary.lever == "weights" and not canary.share and canary.shadow is None:
            decision = _decision_of(canary, log.pulls_of(scope), log)
        is_running = self._scope == scope and bool(self._process.decision_id)
        if canary is None or decision is None or (is_running and self._process.decision_id != decision["event_id"]):
            if is_running:
                self._process.cancel()
            return []
        until_us = log.acts_of(decision["event_id"])[0]["occurred_at_us"] + self._limit_us
        if is_running:
            found = self._process.poll()
            if found is not None:
                return [acts.replayed(decision, at_us, *_result(found))]
        if at_us >= until_us:
            if is_running:
                self._process.cancel()
            fault = f"it took longer than {self._limit_us / 1e6:g} s: raise control.shadow_timeout_s"
            return [acts.replayed(decision, at_us, *_result(SearchResult(None, fault, is_fault=True)))]
        if not self._process.decision_id:
            task = {
                "model": scope.model,
                "candidate": int(canary.version),
                "stable": int(canary.parent),
                "until_us": until_us,
            }
            self._process.start(decision["event_id"], scope, serving.harnesses, Spent(), task)
            self._scope = scope
        return []


def _decision_of(canary: Canary, pulls: list[Decision], log: DecisionLog) -> Decision | None:
    """Return the decision that put the canary out; None: a person did."""
    found = [
        one
        for one in pulls
        if (one["action"], one["lever"], one["target"]) == ("canary", "weights", canary.version)
        if not one["share"] and log.state_of(one) == "done"
    ]
    return found[-1] if found else None


def _result(found: SearchResult) -> tuple[Shadow, str]:
    """Return what a replay found, also if it failed, and a sentence for the act."""
    shadow = found.shadow or Shadow(undefined(found.reason))
    difference = shadow.difference
    if difference.value is None:
        return shadow, f"the shadow replay was not possible: {difference.reason}"
    text = f"{difference.value:+.3f} [{difference.low:.3f}, {difference.high:.3f}]"
    return shadow, f"on {difference.n} recorded prompts its score differs from its parent's by {text}"
