"""Remember which trajectories began in each trace, for calls whose history was edited. Pure.

A trace may contain one run of an agent, or a whole evaluation. So a call with the same trace belongs to a trajectory
only if its messages show it too.
"""

from stepstream.services.gateway.context.tree import CallerScope, PrefixHash, Prompt, Trajectory, prefix_hash
from stepstream.topics.events import Message

TraceKey = tuple[str, str]
"""Tenant and trace id."""


class TraceIndex:
    """The trajectories without a name that began in each trace."""

    def __init__(self) -> None:
        self._begun: dict[TraceKey, list[Trajectory]] = {}

    def __len__(self) -> int:
        return len(self._begun)

    def add(self, trajectory: Trajectory) -> None:
        """Add a trajectory that begins in its trace."""
        self._begun.setdefault((trajectory.tenant, trajectory.trace), []).append(trajectory)

    def remove(self, trajectory: Trajectory) -> None:
        """Remove a trajectory that was evicted."""
        key = trajectory.tenant, trajectory.trace
        begun = self._begun.get(key, [])
        if trajectory in begun:
            begun.remove(trajectory)
            if not begun:
                del self._begun[key]

    def find(self, tenant: str, trace: str, scope: CallerScope, prompt: Prompt) -> str:
        """Return the only trajectory of a trace and caller whose history the call repeats in part; empty: none.

        That is one whose first prompt or calls of tools it repeats, or one whose calls have all failed if it repeats
        their prompt.
        """
        begun = [one for one in self._begun.get((tenant, trace), ()) if one.scope == scope]
        if not begun:
            return ""
        made = {made_calls(message) for message in prompt.messages} - {None}
        found = [one.id for one in begun if not made.isdisjoint(one.calls_made) or _repeats(prompt, one)]
        return found[0] if len(found) == 1 else ""


def made_calls(message: Message) -> PrefixHash | None:
    """Return a digest of an assistant's message that calls tools; None: it calls none."""
    return prefix_hash(b"", message) if message["role"] == "assistant" and message["tool_calls"] else None


def _repeats(prompt: Prompt, trajectory: Trajectory) -> bool:
    first, hashes = trajectory.first_prompt, prompt.prefix_hashes
    if first not in hashes:
        return False
    rest = prompt.messages[hashes.index(first) + 1 :]
    if not rest:
        return trajectory.failed and not trajectory.steps
    return any(message["role"] == "assistant" for message in rest)
