"""Declare the console's users, their roles and their tenants. Pure."""

from dataclasses import dataclass
from typing import Literal, get_args

Role = Literal["viewer", "operator", "admin"]
"""`viewer` reads; `operator` also acts (label, redrive, release); `admin` also sees the settings and the audit."""

ROLES: tuple[Role, ...] = get_args(Role)
"""Every role, the least first: a role may do all that those before it may."""


def role_of(text: str) -> Role | None:
    """Return the role of this name; None: there is none."""
    return next((role for role in ROLES if role == text), None)


@dataclass(frozen=True)
class User:
    """A person who is logged in."""

    name: str
    role: Role
    tenant: str
    """The one tenant whose data the person sees; empty: all tenants, and what belongs to the installation."""

    def may(self, role: Role) -> bool:
        """Return True if the person's role includes `role`."""
        return ROLES.index(self.role) >= ROLES.index(role)


LOCAL = User("local", "admin", "")
"""The user of a console without login, which only its own machine reaches."""
