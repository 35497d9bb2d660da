"""List all rules of the inline tier, and select those that a policy enables."""

from stepstream.jobs.redaction.api_keys import TOKENS
from stepstream.jobs.redaction.assignments import ASSIGNMENTS
from stepstream.jobs.redaction.contacts import NAMES, PERSONAL
from stepstream.jobs.redaction.national import IDS
from stepstream.jobs.redaction.numbers import NUMBERS
from stepstream.jobs.redaction.options import OPTIONAL_RULES, RedactionOptions
from stepstream.jobs.redaction.rule import Rule

_GENERAL = (*TOKENS, *ASSIGNMENTS, *NUMBERS, *PERSONAL, *NAMES)
RULES = frozenset({rule.name for rule in _GENERAL} | {kind.name for kind in IDS})
"""Names of rules that a policy can enable or disable."""
ID_RULES = frozenset({rule.name for rule in TOKENS} | {"email", "card", "iban"})
"""Rules that recognise a value by its form alone. They are safe for ids: none matches a UUID."""
REGIONS = frozenset(kind.region for kind in IDS)
"""Countries with rules for national ids."""


def inline_rules(options: RedactionOptions) -> tuple[Rule, ...]:
    """Return the rules that the options enable."""
    enabled = RULES - OPTIONAL_RULES | options.on
    if options.names:
        enabled |= {"name"}
    enabled -= options.off
    general = [rule for rule in _GENERAL if rule.name in enabled]
    national = [
        rule
        for kind in IDS
        if kind.name in enabled and (options.regions is None or kind.region in options.regions)
        for rule in kind.rules()
    ]
    return (*general, *national)
