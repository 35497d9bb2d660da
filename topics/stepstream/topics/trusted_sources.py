"""Decide whose feedback counts as that of a verifier, a test, a reward model, a judge or a reviewer. Pure.

The writer of feedback chooses its `source` freely. Feedback with a restricted source therefore counts only if its
`producer` may report for that source. Only Stepstream's jobs know whether a judge is calibrated, so no other producer
may report as `judge`, and only the console knows who is logged in. `producer` is text too: write access to the topic
`feedback` protects it (docs/rewards.md).
"""

VERDICTS_SCOPE = "verdicts"
"""Scope of API keys whose feedback the gateway writes as producer `verdicts/KEY_ID`. A trusted Kafka client may use the
name too, as `verdicts/ci`."""

PERSON = "person"
"""Source of the verdicts that people give in the console. `person:NAME` names who gave it."""

SHADOW_PREFIX = "shadow."
"""Prefix of the names of measured but unpaid feedback."""

_SOURCES_OF = {
    "verify": frozenset({"verifier", "test", "prm", "judge"}),
    "judge": frozenset({"judge"}),
    "console": frozenset({PERSON}),
    VERDICTS_SCOPE: frozenset({"verifier", "test", "prm"}),
}
_RESTRICTED = frozenset[str]().union(*_SOURCES_OF.values())


def is_restricted(source: str) -> bool:
    """Return True if feedback of a source counts from trusted producers only."""
    return _kind(source) in _RESTRICTED


def is_of_source(source: str, declared: str | None) -> bool:
    """Return True if a source is the one that a reward component declares: `person` stands for every `person:NAME`."""
    return declared in (None, _kind(source))


def may_report(producer: str, source: str) -> bool:
    """Return True if feedback of a producer (`NAME/VERSION`) counts under its source."""
    return not is_restricted(source) or _kind(source) in _SOURCES_OF.get(_name(producer), ())


def may_give_verdicts(producer: str) -> bool:
    """Return True if a producer may report for any restricted source, and so retract such feedback."""
    return _name(producer) in _SOURCES_OF


def _kind(source: str) -> str:
    """Return `person` for `person:NAME`; every other source is a kind of its own."""
    return PERSON if source.startswith(f"{PERSON}:") else source


def _name(producer: str) -> str:
    return producer.partition("/")[0]
