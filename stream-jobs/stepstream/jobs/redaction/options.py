"""What a tenant's policy says about redaction: the table `[redaction]` of its policy file."""

from dataclasses import dataclass

TIERS = ("inline", "presidio", "detect_secrets")
OPTIONAL_RULES = frozenset({"mac", "name"})


class RedactionError(ValueError):
    """The table cannot be applied; the message says which entry, and what to do."""


@dataclass(frozen=True)
class RedactionOptions:
    """What is looked for, and how thoroughly. Hashable, so that one redactor serves all tenants with the same."""

    tiers: frozenset[str] = frozenset({"inline"})
    """`inline`: the rules of this package. `presidio`, `detect_secrets`: their rules besides, many times slower."""
    names: bool = False
    """Whether names of people are replaced where the context tells them (`My name is …`, `"first_name": …`)."""
    off: frozenset[str] = frozenset()
    """Rules that are switched off."""
    on: frozenset[str] = frozenset()
    """Rules that are switched on which by default are not: `mac`."""
    regions: frozenset[str] | None = None
    """Countries (ISO 3166, lower case) whose national ids are looked for; null: all that are known."""
    allow: tuple[str, ...] = ()
    """Regular expressions; a value that one of them matches as a whole stays."""
    custom: tuple[tuple[str, str], ...] = ()
    """Rules of the tenant's own: name and regular expression; of a group named `value`, else all, is replaced."""
