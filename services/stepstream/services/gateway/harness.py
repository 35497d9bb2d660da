"""Choose the harness version of each trajectory whose calls opt in. Pure: `app` passes the table.

The version follows from the trajectory's identity, as the track of a model does: every gateway chooses the same one. A
trajectory in the context cache keeps its version, until that is taken back. Only calls that name their trajectory can
get a harness: others are placed by their content, which a harness changes.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from stepstream.topics.events import Harness
from stepstream.versions.harnesses import ServedHarnesses, served_harnesses, versions_of

UNCHANGED = ""
"""Version of a trajectory that began without a harness: its calls stay unchanged."""

AGENTS = 10_000
"""Agents whose versions are kept in memory: callers name agents as they like."""


class HarnessTable(Protocol):
    """The records of `harnesses`; `stepstream.topics.table.Table` follows the topic."""

    def items(self) -> dict[str, Any]:
        """Return all records by key."""
        ...

    def on_change(self, callback: Callable[[str, Any], None]) -> None:
        """Call `callback` in another thread at each later change."""
        ...


class HarnessChooser:
    """Chooses harness versions."""

    def __init__(self, table: HarnessTable) -> None:
        self._table = table
        self._agents: OrderedDict[tuple[str, str], tuple[dict[str, Harness], ServedHarnesses]] = OrderedDict()
        table.on_change(lambda _key, _record: self._forget())

    def choose(self, tenant: str, agent: str, trajectory_id: str, before: str | None) -> Harness | None:
        """Return the version of a trajectory's next call; None: none, the call stays unchanged.

        Args:
            tenant: tenant of the call.
            agent: agent that it names.
            trajectory_id: trajectory that it names.
            before: version of the call before, or `UNCHANGED`; None: unknown.
        """
        if before == UNCHANGED:
            return None
        versions, served = self._of(tenant, agent)
        kept = versions.get(before) if before is not None else None
        if kept is not None and kept["state"] in ("stable", "canary"):
            return kept
        return served.of(trajectory_id)[1]

    def _of(self, tenant: str, agent: str) -> tuple[dict[str, Harness], ServedHarnesses]:
        agents = self._agents
        found = agents.get((tenant, agent))
        if found is None:
            versions = versions_of(self._table.items().values(), tenant, agent)
            found = agents[tenant, agent] = versions, served_harnesses(versions.values())
            if len(agents) > AGENTS:
                agents.popitem(last=False)
        else:
            agents.move_to_end((tenant, agent))
        return found

    def _forget(self) -> None:
        self._agents = OrderedDict()  # a choice that runs now fills the old one, which nothing reads again
