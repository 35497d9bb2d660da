"""Count the use of each API key, share the counts through the topic `key-usage`, and hold rates and budgets.

No request waits for the network. Each gateway process adds what it counts itself to what the others published:

- The process publishes its sums of each key once a second, under an identity that it makes at its start. So a sum only
  grows, and the use of a key is the sum over all processes, also over those that ended.
- A limit is checked before a request, and tokens are known after it. So a budget can be exceeded by the requests in
  flight and by what the other gateways counted in the last second; while Kafka is away, by what they count meanwhile.
"""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple, Protocol
from uuid import uuid4

from stepstream.core.prices import Prices
from stepstream.services.gateway.errors import BudgetSpent, Forbidden, RateExceeded
from stepstream.topics.events import ApiKey, KeyUsage, new_key_usage
from stepstream.topics.ids import new_event_id, now_us

_WINDOW_S = 60


class Used(NamedTuple):
    """Sums of one key."""

    requests: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    cost_usd: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of prompts and responses."""
        return self.prompt_tokens + self.response_tokens

    def plus(self, other: "Used", sign: int = 1) -> "Used":
        """Return the sum; with `sign` -1 the difference."""
        return Used(
            self.requests + sign * other.requests,
            self.prompt_tokens + sign * other.prompt_tokens,
            self.response_tokens + sign * other.response_tokens,
            self.cost_usd + sign * other.cost_usd,
        )


class UsageTable(Protocol):
    """The records of `key-usage`; `stepstream.topics.table.Table` follows the topic."""

    @property
    def current(self) -> bool:
        """False: records from before the start are still being read."""
        ...

    def items(self) -> dict[str, KeyUsage]:
        """Return all records by key."""
        ...

    def on_change(self, callback: Callable[[str, KeyUsage | None], None]) -> None:
        """Call `callback(key, record)` in another thread at each later change."""
        ...


class KeyCounts:
    """Counts of one gateway process. For one event loop; the table's thread adds the counts of others."""

    def __init__(
        self, table: UsageTable, prices: Prices, producer: str, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`producer`: program that writes the events, as `gateway/0.1.0`."""
        self._table = table
        self.prices = prices
        self._producer = producer
        self._now_s = now_s
        self._gateway_id = uuid4().hex
        self._own: dict[str, Used] = {}
        self._unpublished: set[str] = set()
        self._lock = threading.Lock()  # guards what the table's thread changes
        self._others: dict[str, Used] = {}
        self._published: dict[str, Used] = {}
        """Last sums of the others, by key of the record."""
        self._windows: dict[str, _Window] = defaultdict(_Window)
        table.on_change(self._on_record)
        for name, record in table.items().items():
            self._on_record(name, record, is_newest=False)

    def used(self, key_id: str) -> Used:
        """Return the use of a key by all gateways, as far as they have published it."""
        return self._own.get(key_id, Used()).plus(self._others.get(key_id, Used()))

    def admit(self, key: ApiKey, *, spends: bool) -> None:
        """Count a request if the key's limits have room for it.

        Args:
            key: the key.
            spends: True if the request may use tokens.

        Raises:
            RateExceeded: the key has made as many requests in the last minute as it may.
            BudgetSpent: its tokens or its cost have reached the budget.
        """
        key_id, now = key["key_id"], self._now_s()
        if spends:
            self._check_budget(key)
        rate = key["requests_per_minute"]
        with self._lock:
            window = self._windows[key_id]
            if rate is not None and (wait_s := window.wait_s(rate, now)):
                raise RateExceeded(f"API key {key_id} may make {rate} requests a minute", wait_s)
            window.add(1, now)
        self._add(key_id, Used(requests=1))

    def check_price(self, key: ApiKey | None, model: str) -> None:
        """Check that the cost of a model is known to a key with a budget of cost.

        Raises:
            Forbidden: `gateway.prices` has no price.
        """
        if key is not None and key["cost_budget_usd"] is not None and self.prices.cost_usd(model, 0, 0) is None:
            raise Forbidden(
                f"API key {key['key_id']} has a budget of cost, and the model '{model}' has no price: "
                "the operator adds it to gateway.prices"
            )

    def add_tokens(self, key_id: str, model: str, prompt: int, response: int) -> None:
        """Count the tokens of a finished request."""
        self._add(key_id, Used(0, prompt, response, self.prices.cost_usd(model, prompt, response) or 0.0))

    def unpublished(self) -> list[tuple[str, KeyUsage]]:
        """Return key and record of each key whose sums changed since the last time."""
        changed, self._unpublished = self._unpublished, set()
        return [(f"{key_id}/{self._gateway_id}", self._record(key_id)) for key_id in sorted(changed)]

    def _check_budget(self, key: ApiKey) -> None:
        tokens, cost = key["token_budget"], key["cost_budget_usd"]
        if tokens is None and cost is None:
            return
        used = self.used(key["key_id"])
        if tokens is not None and used.tokens >= tokens:
            raise BudgetSpent(f"API key {key['key_id']} has used {used.tokens} of {tokens} tokens")
        if cost is not None and used.cost_usd >= cost:
            raise BudgetSpent(f"API key {key['key_id']} has used {used.cost_usd:.2f} of {cost:.2f} US dollars")

    def _add(self, key_id: str, used: Used) -> None:
        self._own[key_id] = self._own.get(key_id, Used()).plus(used)
        self._unpublished.add(key_id)

    def _record(self, key_id: str) -> KeyUsage:
        return new_key_usage(
            event_id=new_event_id(),
            occurred_at_us=now_us(),
            producer=self._producer,
            key_id=key_id,
            gateway_id=self._gateway_id,
            **self._own[key_id]._asdict(),
        )

    def _on_record(self, name: str, record: KeyUsage | None, is_newest: bool = True) -> None:
        """Replace the sums of one process and key; with `is_newest` false only if there are none."""
        key_id, _, gateway_id = name.rpartition("/")
        if gateway_id == self._gateway_id:
            return
        used = Used() if record is None else used_of(record)
        with self._lock:
            if not is_newest and name in self._published:  # the table's thread was faster
                return
            change = used.plus(self._published.get(name, Used()), -1)
            self._published[name] = used
            self._others[key_id] = self._others.get(key_id, Used()).plus(change)
            if self._table.current and change.requests > 0:  # earlier records are of any age
                self._windows[key_id].add(change.requests, self._now_s())


class _Window:
    """Requests of the last minute, by second."""

    def __init__(self) -> None:
        self._by_second: dict[int, int] = {}

    def add(self, requests: int, now_s: float) -> None:
        second = math.floor(now_s)
        self._by_second[second] = self._by_second.get(second, 0) + requests
        if len(self._by_second) > 2 * _WINDOW_S:
            self._forget(second - _WINDOW_S)

    def wait_s(self, rate: int, now_s: float) -> int:
        """Return the seconds until the window has room for a request; 0: it has."""
        first = math.floor(now_s) - _WINDOW_S
        self._forget(first)
        total = sum(self._by_second.values())
        for second, count in sorted(self._by_second.items()):
            if total < rate:
                return 0
            total -= count
            if total < rate:
                return second - first
        return 0

    def _forget(self, until: int) -> None:
        self._by_second = {second: count for second, count in self._by_second.items() if second > until}


def used_of(record: KeyUsage) -> Used:
    """Return the sums in a record."""
    return Used(record["requests"], record["prompt_tokens"], record["response_tokens"], record["cost_usd"])
