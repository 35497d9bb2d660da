"""Build the next version of control policies: applied, frozen, unfrozen. Pure.

The topic `control-policies` holds the newest version of each policy of a tenant. `frozen` is the kill switch beside the
file. Applying a file keeps it, also under a new name if all policies of the tenant are frozen; only `unfreeze` ends it.
"""

from collections.abc import Callable, Iterable

import orjson

from stepstream.services.control.decide.policy import ControlPolicy as Policy
from stepstream.topics.events import ControlPolicy, new_control_policy

DEFAULT_NAME = "default"


class PolicyRefused(Exception):
    """The change is impossible; the message has the reason and the remedy."""


def record_key(tenant: str, name: str) -> str:
    """Return the key of a policy's records."""
    return orjson.dumps([tenant, name]).decode()


def policies_of(records: Iterable[ControlPolicy], tenant: str) -> dict[str, ControlPolicy]:
    """Return the policies of a tenant by name; an empty tenant: of all, by key."""
    if not tenant:
        return {record_key(one["tenant"], one["name"]): one for one in records}
    return {one["name"]: one for one in records if one["tenant"] == tenant}


def applied(
    policies: Iterable[ControlPolicy], *, name: str, document: str, author: str, event_id: str, now_us: int
) -> ControlPolicy:
    """Return the next version of a policy with the text of a file.

    It is frozen if the version before is, or, for a new name, if every policy of the tenant is: the kill switch of a
    tenant holds for later policies too.

    Args:
        policies: newest versions of all tenants.
        name: the policy.
        document: text of the file, which names the tenant.
        author: person.
        event_id: id of the version.
        now_us: time in microseconds since the Unix epoch.

    Raises:
        PolicyError: the file is invalid.
    """
    policy = Policy.parse(document)
    own = policies_of(policies, policy.tenant)
    before = own.get(name)
    is_tenant_frozen = bool(own) and all(one["frozen"] for one in own.values())
    return new_control_policy(
        event_id=event_id,
        occurred_at_us=now_us,
        tenant=policy.tenant,
        name=name,
        version=1 if before is None else before["version"] + 1,
        document=document,
        hash=policy.hash,
        author=author,
        frozen=is_tenant_frozen if before is None else before["frozen"],
    )


def frozen(
    policies: Iterable[ControlPolicy],
    tenant: str,
    name: str,
    *,
    is_frozen: bool,
    author: str,
    now_us: int,
    new_id: Callable[[], str],
) -> list[ControlPolicy]:
    """Return the next versions that freeze or unfreeze a tenant's policies; none: all are so already.

    Args:
        policies: newest versions of all tenants.
        tenant: the tenant; one without a policy gets an empty file named `default`, which has the built-in limits.
        name: the policy; empty: all of the tenant.
        is_frozen: True to freeze.
        author: person.
        now_us: time in microseconds since the Unix epoch.
        new_id: returns an event id.

    Raises:
        PolicyRefused: the tenant has no policy of that name.
    """
    own = policies_of(policies, tenant)
    if name and name not in own and (own or name != DEFAULT_NAME):
        raise PolicyRefused(f"tenant {tenant} has no control policy {name}; it has: {', '.join(sorted(own)) or 'none'}")
    if not own and is_frozen:
        own = {DEFAULT_NAME: _built_in(tenant, author, now_us)}
    chosen = [one for each, one in sorted(own.items()) if not name or each == name]
    changed = [one for one in chosen if one["frozen"] != is_frozen]
    return [
        {
            **one,
            "event_id": new_id(),
            "occurred_at_us": now_us,
            "version": one["version"] + 1,
            "author": author,
            "frozen": is_frozen,
        }
        for one in changed
    ]


def _built_in(tenant: str, author: str, now_us: int) -> ControlPolicy:
    # JSON allows the character DEL in a text, TOML does not.
    name = orjson.dumps(tenant).decode().replace("\x7f", "\\u007f")
    document = f"tenant = {name}\n"
    return new_control_policy(
        event_id="",
        occurred_at_us=now_us,
        tenant=tenant,
        name=DEFAULT_NAME,
        version=0,
        document=document,
        hash=Policy.parse(document).hash,
        author=author,
    )
