"""Compute the consent of a record from the decisions of its tenant, person and agent. Pure.

The newest decision about one combination of tenant, person and agent is in force. Of all decisions that apply to a
record, the strictest counts.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import quote, unquote

from stepstream.topics.events import Consent

LEVELS: tuple[Consent, ...] = ("none", "analyse", "train")
"""Strictest first."""
ANY = "*"


class ConsentSource(Protocol):
    """The newest records by key: a dict, or a followed table."""

    def get(self, key: str) -> Any:
        """Return the newest record of a key, or None."""
        ...


def effective_consent(
    given: Consent,
    consents: ConsentSource,
    *,
    tenant: str,
    user: str | None,
    agent: str | None,
    default: Consent = "train",
    maximum: Consent = "train",
) -> Consent:
    """Return the permitted use of a record.

    Args:
        given: consent in the record itself.
        consents: ConsentChange records.
        tenant: the record's tenant.
        user: its person; None: it names nobody.
        agent: its agent; None: it names no agent.
        default: the policy's consent if no decision applies.
        maximum: the policy's upper limit.
    """
    return strictest_of(given, maximum, strictest_consent(consents, tenant, user, agent) or default)


def strictest_consent(consents: ConsentSource, tenant: str, user: str | None, agent: str | None) -> Consent | None:
    """Return the strictest decision about a tenant, one of its persons and one of its agents; None: no decision."""
    matching = _matching(consents, tenant, user, agent)
    first = next(matching, None)
    return None if first is None else strictest_of(first, *matching)


def _matching(consents: ConsentSource, tenant: str, user: str | None, agent: str | None) -> Iterator[Consent]:
    for person in {user, None}:
        for name in {agent, None}:
            record = consents.get(consent_key(tenant, person, name))
            if record is not None:
                yield record["consent"]


def strictest_of(first: Consent, *others: Consent) -> Consent:
    """Return the strictest of some consents."""
    return min((first, *others), key=LEVELS.index)


@lru_cache(maxsize=100_000)
def consent_key(tenant: str, user: str | None, agent: str | None) -> str:
    """Return the key of a record on `consents`: `tenant/user/agent`, where `*` means all."""
    return "/".join((_escape(tenant), ANY if user is None else _escape(user), ANY if agent is None else _escape(agent)))


def parse_consent_key(key: str) -> tuple[str, str | None, str | None] | None:
    """Return tenant, person and agent of a key (None: all); None: it is no such key."""
    parts = key.split("/")
    if len(parts) != 3:
        return None
    tenant, user, agent = (None if part == ANY else unquote(part, errors="surrogatepass") for part in parts)
    return None if tenant is None else (tenant, user, agent)


def _escape(name: str) -> str:
    """Percent-encode a name, which may contain `/` and `*`."""
    return quote(name, safe="@:", errors="surrogatepass")
