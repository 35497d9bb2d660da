"""Make the console's user of a person's claims at an OpenID Connect provider. Pure."""

from collections.abc import Mapping
from typing import Any

from stepstream.config import ConsoleSettings
from stepstream.services.console.users import ROLES, Role, User, role_of

PREFIX = "oidc:"
"""Begins the names of these users: no local user's name contains a colon."""
ALL_TENANTS = "*"
_LONGEST = 200


class NoAccess(Exception):
    """The claims give no access; the message names the claim and the setting."""


def user_of_claims(claims: Mapping[str, Any], config: ConsoleSettings) -> User:
    """Return the user.

    Args:
        claims: validated claims of the ID token and of the userinfo endpoint.
        config: settings that name the claims.

    Raises:
        NoAccess: the claims name no role, or no tenant although `oidc_tenant_claim` is set.
    """
    role = _role(_texts(claims, config.oidc_role_claim), config.oidc_roles)
    if role is None:
        raise NoAccess(f"claim {config.oidc_role_claim} gives no role: see console.oidc_role_claim and oidc_roles")
    tenant = ""
    if config.oidc_tenant_claim:
        tenants = _texts(claims, config.oidc_tenant_claim)
        if len(tenants) != 1:
            raise NoAccess(f"claim {config.oidc_tenant_claim} does not name one tenant: see console.oidc_tenant_claim")
        tenant = "" if tenants[0] == ALL_TENANTS else tenants[0]
    names = _texts(claims, config.oidc_name_claim) or _texts(claims, "sub")
    return User(PREFIX + names[0], role, tenant)


def _role(values: list[str], rules: list[str]) -> Role | None:
    """Return the greatest role of the claim's values."""
    named = dict(rule.rpartition("=")[::2] for rule in rules)
    roles = [role for value in values if (role := role_of(named.get(value, "") if named else value)) is not None]
    return max(roles, key=ROLES.index, default=None)


def _texts(claims: Mapping[str, Any], path: str) -> list[str]:
    """Return the texts of a claim: its value, or those of its list; `path` is its name, or leads to it by dots."""
    value: Any = claims.get(path)
    if value is None:
        value = claims
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, str) and 0 < len(each) <= _LONGEST]
