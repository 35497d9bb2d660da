"""Declare what the console answers: each endpoint names its path, the least role, and its handler.

    @reads("/api/rewards")
    def rewards(call: Call) -> Answer:
        return {"components": call.query(COMPONENTS, limit=call.integer("limit", 50, most=500))}

Every query is bound to the user's tenant (`call.query`); a user of all tenants may name one (`tenant`). An endpoint
about the installation itself, whose tables have no tenant, is declared `installation=True`: users of one tenant get
403.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepstream.config import Settings
from stepstream.services.console.decision_cache import DecisionCache
from stepstream.services.console.event_log import EventLog
from stepstream.services.console.store import Row, Store
from stepstream.services.console.users import Role, User

Answer = dict[str, Any]
"""An object of JSON."""

TENANT = "({tenant:String} = '' OR tenant = {tenant:String})"
"""Condition on a table's column `tenant` that bounds a query to the user's tenant."""

_UNITS_S = {"m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9]{1,4})([mhd])")
_MOST_DAYS = 366


class BadRequest(Exception):
    """The request cannot be answered; the message says what to change. The caller gets status 400."""


@dataclass(frozen=True)
class Services:
    """Settings and connections that handlers use."""

    settings: Settings
    store: Store
    log: EventLog
    decisions: DecisionCache


@dataclass(frozen=True)
class Call:
    """One request to an endpoint, from a user who may call it."""

    user: User
    services: Services
    parameters: Mapping[str, str]
    """The query string."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """The JSON object of an action; empty for others."""

    @property
    def tenant(self) -> str:
        """Return the tenant of its queries: the user's, else the parameter `tenant`; empty: all tenants.

        Raises:
            BadRequest: the parameter is too long.
        """
        return self.user.tenant or self.text("tenant", longest=256)

    def query(self, sql: str, *, fresh_s: float = 1.0, **parameters: Any) -> list[Row]:
        """Return the rows of a query that is bound to `tenant` (`TENANT`).

        Raises:
            ValueError: the query is not bound to a tenant: an error of the program.
            Unavailable: the store does not answer.
            QueryFailed: the store rejects the query.
        """
        if "{tenant:String}" not in sql:
            raise ValueError("the query is not bound to the user's tenant: add TENANT, or use query_installation")
        return self.services.store.query(sql, {**parameters, "tenant": self.tenant}, fresh_s=fresh_s)

    def query_installation(self, sql: str, *, fresh_s: float = 1.0, **parameters: Any) -> list[Row]:
        """Return the rows of a query about the installation; none for a user of one tenant.

        Raises:
            Unavailable: the store does not answer.
        """
        return [] if self.user.tenant else self.services.store.query(sql, parameters, fresh_s=fresh_s)

    def publish(self, topic: str, key: str, record: Any) -> None:
        """Write an event to the log; block until it is durable.

        Raises:
            LogUnavailable: Kafka or the registry does not answer.
        """
        self.services.log.publish(topic, key, record)

    def text(self, name: str, default: str = "", *, longest: int = 200) -> str:
        """Return a parameter.

        Raises:
            BadRequest: it is longer than `longest` characters.
        """
        value = self.parameters.get(name, default)
        if len(value) > longest:
            raise BadRequest(f"{name} is longer than {longest} characters")
        return value

    def integer(self, name: str, default: int, *, least: int = 0, most: int) -> int:
        """Return a parameter as a number from `least` to `most`.

        Raises:
            BadRequest: it is none.
        """
        value = self.parameters.get(name) or str(default)
        if not re.fullmatch(r"-?[0-9]{1,18}", value) or not least <= int(value) <= most:
            raise BadRequest(f"{name} must be a whole number from {least} to {most}, not {value[:50]}")
        return int(value)

    def time_range(self, default: str = "24h") -> tuple[int, int]:
        """Return the begin and end of the range that `since` and `until` name, in microseconds since the Unix epoch.

        `since` is a duration before the end, as `15m`, `24h` or `7d`; `until` the end in milliseconds since the epoch,
        now if it is missing.

        Raises:
            BadRequest: one of them is neither.
        """
        # The end of the present ten seconds, so that requests of the same seconds share their answers.
        now_ms = (time.time_ns() // (10 * 10**9) + 1) * 10_000
        until_ms = self.integer("until", now_ms, most=now_ms + 86_400_000)
        since = self.parameters.get("since") or default
        match = _DURATION.fullmatch(since)
        seconds = int(match[1]) * _UNITS_S[match[2]] if match else 0
        if not 0 < seconds <= _MOST_DAYS * 86_400:
            raise BadRequest(f"since must be a duration up to {_MOST_DAYS}d, as 15m, 24h or 7d, not {since[:50]}")
        return (until_ms - seconds * 1000) * 1000, until_ms * 1000


@dataclass(frozen=True)
class Done:
    """The result of an action."""

    target: str
    """Ids and names of the object of the action, for the audit; no text of agents or people."""
    answer: Answer = field(default_factory=dict)


@dataclass(frozen=True)
class Endpoint:
    """One path of the console's API."""

    path: str
    role: Role
    """Least role that may call it."""
    installation: bool
    """True: users of one tenant may not call it."""
    read: Callable[[Call], Answer] | None = None
    act: Callable[[Call], Done] | None = None
    """Of an action, which is called with POST and recorded on the log; exactly one of `read` and `act` is given."""
    names: tuple[str, ...] = ()
    """Fields of an action's body that name its object, for the audit: ids and names, no text of agents or people."""


def reads(
    path: str, *, role: Role = "viewer", installation: bool = False
) -> Callable[[Callable[[Call], Answer]], Endpoint]:
    """Make an endpoint of a function that only reads."""
    return lambda read: Endpoint(path, role, installation, read=read)


def acts(
    path: str, *, names: tuple[str, ...], role: Role = "operator", installation: bool = False
) -> Callable[[Callable[[Call], Done]], Endpoint]:
    """Make an endpoint of a function that changes something: a POST with the session's CSRF token, and audited."""
    return lambda act: Endpoint(path, role, installation, act=act, names=names)
