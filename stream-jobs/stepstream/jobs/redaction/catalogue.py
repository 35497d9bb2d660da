"""All rules of the inline tier, and what is known about them."""

from stepstream.jobs.redaction.api_keys import TOKENS
from stepstream.jobs.redaction.assignments import ASSIGNMENTS
from stepstream.jobs.redaction.contacts import NAMES, PERSONAL
from stepstream.jobs.redaction.national import IDS
from stepstream.jobs.redaction.numbers import NUMBERS
from stepstream.jobs.redaction.options import OPTIONAL_RULES, RedactionOptions
from stepstream.jobs.redaction.rule import Rule

_GENERAL = (*TOKENS, *ASSIGNMENTS, *NUMBERS, *PERSONAL, *NAMES)
RULES = frozenset({rule.name for rule in _GENERAL} | {kind.name for kind in IDS})
"""Names that a policy may switch."""
ID_RULES = frozenset({rule.name for rule in TOKENS} | {"email", "card", "iban"})
"""Rules that are told by the form of the value alone, so that they may look at ids: none takes a UUID for a secret."""
REGIONS = frozenset(kind.region for kind in IDS)
"""Countries whose national ids are known."""


def inline_rules(options: RedactionOptions) -> tuple[Rule, ...]:
    """The rules that the options ask for."""
    wanted = RULES - OPTIONAL_RULES | options.on
    if options.names:
        wanted |= {"name"}
    wanted -= options.off
    general = [rule for rule in _GENERAL if rule.name in wanted]
    national = [
        rule
        for kind in IDS
        if kind.name in wanted and (options.regions is None or kind.region in options.regions)
        for rule in kind.rules()
    ]
    return (*general, *national)
