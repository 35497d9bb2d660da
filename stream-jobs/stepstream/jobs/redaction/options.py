"""Hold the options of redaction: the values of the `[redaction]` table of a policy file."""

from dataclasses import dataclass

TIERS = ("inline", "presidio", "detect_secrets")
OPTIONAL_RULES = frozenset({"mac", "name"})


class RedactionError(ValueError):
    """The table cannot be applied; the message names the entry and the remedy."""


@dataclass(frozen=True)
class RedactionOptions:
    """The rules to apply. Hashable: tenants with equal options share the compiled rules."""

    tiers: frozenset[str] = frozenset({"inline"})
    """`inline`: the rules of this package. `presidio`, `detect_secrets`: their rules too, many times slower."""
    names: bool = False
    """True: replace names of people after words that announce them (`My name is …`, `"first_name": …`)."""
    off: frozenset[str] = frozenset()
    """Disabled rules."""
    on: frozenset[str] = frozenset()
    """Enabled rules that are off by default: `mac`."""
    regions: frozenset[str] | None = None
    """Countries (ISO 3166, lower case) of the national ids to replace; None: all known ones."""
    allow: tuple[str, ...] = ()
    """Regular expressions; a value that one of them fully matches is not replaced."""
    custom: tuple[tuple[str, str], ...] = ()
    """The tenant's own rules: name and regular expression. Only the group `value` is replaced if there is one."""
