"""What may be done with a record, by what its tenant, person and agent have said. Pure.

What is said last about one tenant, person and agent counts; of all that applies to a record, the strictest.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import quote

from stepstream.topics.events import Consent

LEVELS: tuple[Consent, ...] = ("none", "analyse", "train")
"""From the strictest on."""
ANY = "*"


class ConsentSource(Protocol):
    """The consents by key: a dict, or the followed table."""

    def get(self, key: str) -> Any:
        """The newest ConsentChange of a key, or None."""
        ...


@lru_cache(maxsize=100_000)
def consent_key(tenant: str, user: str | None, agent: str | None) -> str:
    """Key of a record on `consents`: `tenant/user/agent`, with `*` for all of them."""
    return "/".join((_part(tenant), ANY if user is None else _part(user), ANY if agent is None else _part(agent)))


def stricter(first: Consent, *others: Consent) -> Consent:
    """The strictest of some."""
    return min((first, *others), key=LEVELS.index)


def strictest(said: ConsentSource, tenant: str, user: str | None, agent: str | None) -> Consent | None:
    """The strictest of all that was said about a tenant, one of its persons and one of its agents; None: nothing."""
    found = _matching(said, tenant, user, agent)
    first = next(found, None)
    return None if first is None else stricter(first, *found)


def effective(
    told: Consent,
    said: ConsentSource,
    *,
    tenant: str,
    user: str | None,
    agent: str | None,
    default: Consent = "train",
    maximum: Consent = "train",
) -> Consent:
    """What may be done with a record.

    Args:
        told: what the record itself says.
        said: the consents.
        tenant: its tenant.
        user: its person, where there is one.
        agent: its agent, where it tells one.
        default: the policy's word where nothing was said about tenant, person or agent.
        maximum: the most that the policy allows whatever was said.
    """
    return stricter(told, maximum, strictest(said, tenant, user, agent) or default)


def _matching(said: ConsentSource, tenant: str, user: str | None, agent: str | None) -> Iterator[Consent]:
    for person in {user, None}:
        for named in {agent, None}:
            record = said.get(consent_key(tenant, person, named))
            if record is not None:
                yield record["consent"]


def _part(name: str) -> str:
    """A name that may hold `/` and `*`."""
    return quote(name, safe="@:", errors="surrogatepass")
