"""The topic `harnesses` in memory."""

from collections.abc import Callable
from typing import Any

from stepstream.topics.events import HarnessState, new_harness


class HarnessRecords:
    """Records of the agent `a` of tenant `t`, as the table that follows the topic."""

    def __init__(self) -> None:
        self.records: dict[str, Any] = {}
        self._callback: Callable[[str, Any], None]

    def items(self) -> dict[str, Any]:
        return dict(self.records)

    def on_change(self, callback: Callable[[str, Any], None]) -> None:
        self._callback = callback

    def set(self, version: str, state: HarnessState, revision: int, **fields: Any) -> None:
        record = new_harness(
            event_id="", occurred_at_us=0, tenant="t", agent="a", version=version, state=state, revision=revision
        )
        self.records[version] = record | fields
        self._callback(version, self.records[version])
