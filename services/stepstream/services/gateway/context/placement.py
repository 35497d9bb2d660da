"""Decide which trajectory a call belongs to, by all evidence that the call carries. Pure.

A wrong union mixes two attempts, and gives each the reward of the other. A wrong division only leaves two incomplete
attempts. So evidence against a union outweighs evidence for it. The table of combinations is in `docs/gateway.md`.
"""

from dataclasses import dataclass
from typing import Literal

Evident = Literal["name", "response", "messages", "trace", "none"]
"""The evidence that decided."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a call and the gateway's memory say about the call's trajectory. Empty: they say nothing."""

    name: str = ""
    """Trajectory in a header, or session."""
    response: str = ""
    """Trajectory of the response that the call names (`previous_response_id`)."""
    conversation: str = ""
    """Trajectory with a recorded response that ends a prefix of the call's messages, for the same tenant, key, agent,
    task, group, person, environment, split and parent.
    """
    traced: str = ""
    """Trajectory of the same trace and caller whose first prompt the call repeats, or one of whose responses: its
    history was edited. Also one whose calls have all failed, which this call repeats.
    """
    trace: str = ""
    """Trajectory that begins with this call in its trace."""


def decide(evidence: Evidence) -> tuple[str, Evident]:
    """Return the id of the call's trajectory, and the evidence that decided; empty: a new one."""
    if evidence.name:
        return evidence.name, "name"
    if evidence.response:
        return evidence.response, "response"
    if evidence.conversation:
        return evidence.conversation, "messages"
    if evidence.traced:
        return evidence.traced, "trace"
    return evidence.trace, "trace" if evidence.trace else "none"
