"""Know the steps of the calls that the gateway carried, by names that the agent's own telemetry has for them.

An agent that calls through the gateway may also export spans of its calls. A span of a carried call is no new step. All
gateway processes of a folder share the names, as digests.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from stepstream.services.gateway.context.slot_file import SlotFile
from stepstream.topics.call_names import is_response_name, response_name, span_name

FILE = "carried-calls-1"
SLOTS = 1 << 18
"""Number of names: 20 MiB of disk, allocated as it is used."""
_ID_BYTES = 64
_VALUE = struct.Struct(f"<i{_ID_BYTES}s")
LEAST_ID = 16
"""Characters of a response's id that may be unique; servers without ids often send a constant."""
_SEVERAL = _VALUE.pack(-1, b"")
"""Value of an id that several calls have: it names none of them."""


class Carried(Protocol):
    """Finds the steps of carried calls; `CarriedCalls` is the implementation."""

    def is_empty(self) -> bool:
        """Return True if `find` finds nothing, as in a gateway that receives telemetry only."""
        ...

    def find(self, tenant: str, names: Sequence[str]) -> tuple[str, int] | None:
        """Return the trajectory and index of a call; None: no gateway of this folder carried it."""
        ...


def call_ids(response_id: str, trace_id: str, *span_ids: str) -> list[str]:
    """Return the names of a call.

    Args:
        response_id: the provider's id; one that is too short to be unique gives no name.
        trace_id: empty: unknown.
        span_ids: spans of the call, as of the client's request.
    """
    names = [response_name(response_id)] if len(response_id) >= LEAST_ID else []
    return names + [span_name(trace_id, span_id) for span_id in span_ids if trace_id and span_id]


class CarriedCalls:
    """The names of the last carried calls. Close it. Without a usable folder it stores nothing."""

    def __init__(self, folder: Path | None = None) -> None:
        """Open the file of `folder`, creating both if missing."""
        self._file = SlotFile(folder, FILE, _VALUE.size, SLOTS)

    def put(self, tenant: str, names: Sequence[str], trajectory_id: str, step_index: int) -> None:
        """Record the step of a call. A trajectory with a longer id than the file takes is not stored.

        A response's id that another step has too, as a constant of a server, names neither from now on.
        """
        encoded = trajectory_id.encode("utf-8", "surrogatepass")
        if len(encoded) <= _ID_BYTES:
            value = _VALUE.pack(step_index, encoded)
            for name in names:
                self._file.put(_key(tenant, name), value, _SEVERAL if is_response_name(name) else None)

    def is_empty(self) -> bool:
        """Return True if no gateway of this folder has recorded a call."""
        return self._file.is_empty()

    def find(self, tenant: str, names: Sequence[str]) -> tuple[str, int] | None:
        """Return the trajectory and index of a call; None: unknown."""
        for name in names:
            value = self._file.get(_key(tenant, name))
            if value is not None and value != _SEVERAL:
                index, encoded = _VALUE.unpack(value)
                return encoded.rstrip(b"\0").decode("utf-8", "surrogatepass"), index
        return None

    def close(self) -> None:
        """Close the file; later writes are ignored."""
        self._file.close()


def _key(tenant: str, name: str) -> bytes:
    return f"{tenant}\0{name}".encode("utf-8", "surrogatepass")
