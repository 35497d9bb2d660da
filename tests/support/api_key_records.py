"""Make records of API keys, and the counts of their use without Kafka."""

from collections.abc import Callable
from typing import Any

from stepstream.core.prices import Prices
from stepstream.services.gateway.grant import Grant
from stepstream.services.gateway.key_usage import KeyCounts
from stepstream.topics.events import ApiKey, new_api_key


def key_record(**fields: Any) -> ApiKey:
    """Return a record that declares what `fields` name."""
    values = {"key_id": "ab12", "digest": "", "tenant": "acme", "scopes": ["calls"]} | fields
    return new_api_key(event_id="e", occurred_at_us=1, **values)


def key_grant(**fields: Any) -> Grant:
    """Return what a key with these fields permits."""
    return Grant(key_record(**fields))


class UsageRecords:
    """A table of `key-usage`: `put` adds a record as another gateway would."""

    def __init__(self, current: bool = True) -> None:
        self.current = current
        self.rows: dict[str, Any] = {}
        self._callbacks: list[Callable[[str, Any], None]] = []

    def items(self) -> dict[str, Any]:
        """Return all records."""
        return dict(self.rows)

    def on_change(self, callback: Callable[[str, Any], None]) -> None:
        """Call back at each later change."""
        self._callbacks.append(callback)

    def put(self, name: str, record: Any) -> None:
        """Set a record."""
        self.rows[name] = record
        for callback in self._callbacks:
            callback(name, record)


def new_counts(records: UsageRecords | None = None, prices: Prices | None = None, **fields: Any) -> KeyCounts:
    """Return counts of one gateway."""
    return KeyCounts(records or UsageRecords(), prices or Prices(), "gateway/1", **fields)
