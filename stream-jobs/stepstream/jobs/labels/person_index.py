"""Find the saved trajectories of a person or a tenant."""

import hashlib
from collections.abc import Iterable

from stepstream.jobs.runtime.state import Changes

PERSONS = b"p"
"""Prefix of the keys: PERSONS, tenant, person, name of the trajectory; the value is the person's name."""
NAME_BYTES = 16
_NOBODY = bytes(16)


def add_persons(name: bytes, tenant: str, users: Iterable[str], changes: Changes) -> None:
    """List a trajectory under its tenant, and under each of these persons."""
    changes.put(of_tenant(tenant) + name, b"")
    for user in users:
        changes.put(of_person(tenant, user) + name, user.encode("utf-8", "surrogatepass"))


def remove_persons(name: bytes, tenant: str, users: Iterable[str], changes: Changes) -> None:
    """Reverse `add_persons`."""
    changes.delete(of_tenant(tenant) + name)
    for user in users:
        changes.delete(of_person(tenant, user) + name)


def of_tenant(tenant: str) -> bytes:
    """Return the prefix of the keys of a tenant's trajectories, each listed once."""
    return all_persons(tenant) + _NOBODY


def of_person(tenant: str, user: str) -> bytes:
    """Return the prefix of the keys of a person's trajectories."""
    return all_persons(tenant) + _digest(user, len(_NOBODY))


def all_persons(tenant: str) -> bytes:
    """Return the prefix of the keys of all of a tenant's persons."""
    return PERSONS + _digest(tenant, 8)


def _digest(text: str, size: int) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()
