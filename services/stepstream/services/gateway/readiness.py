"""Decide whether a gateway should get calls. Pure.

A gateway without Kafka stays ready: it serves calls, and its events wait in the spool. It is not ready once the spool
is nearly full, since then events would be lost, or when it can answer no call.
"""

from dataclasses import dataclass
from typing import Any

FULL_SHARE = 0.8
"""Share of `gateway.spool_mb` above which a gateway is not ready."""


@dataclass(frozen=True, slots=True)
class GatewayState:
    """The facts that decide."""

    spool_share: float
    """Size of the spool relative to its limit."""
    events_waiting: int
    kafka_fault: str
    """Empty: Kafka answers."""
    keys_current: bool
    """True if all API keys have been read from Kafka."""
    keys_known: bool
    """True if some have, now or by an earlier gateway; calls without a key may need none."""
    upstreams: int
    """Workers that serve a version, or are named by a setting, and providers."""

    def faults(self) -> list[str]:
        """Return why the gateway is not ready; empty: it is."""
        faults = []
        if self.spool_share > FULL_SHARE:
            faults.append(f"the spool is {self.spool_share:.0%} full: restore Kafka, or raise gateway.spool_mb")
        if not self.keys_known:
            faults.append("no API key is known, and calls need one: Kafka has not been read yet")
        if not self.upstreams:
            faults.append("no inference worker serves a version, and no provider is declared")
        return faults

    def body(self) -> dict[str, Any]:
        """Return the answer of `/ready`."""
        faults = self.faults()
        return {
            "ready": not faults,
            "faults": faults,
            "kafka": self.kafka_fault or "ok",
            "spool_share": round(self.spool_share, 4),
            "events_waiting": self.events_waiting,
            "keys_current": self.keys_current,
            "upstreams": self.upstreams,
        }
