"""Decide whose feedback counts as that of a verifier, a test, a process reward model or a judge. Pure.

The writer of feedback chooses its `source` freely. Feedback with a restricted source therefore counts only if its
`producer` may report for that source. Only Stepstream's jobs know whether a judge is calibrated, so no other producer
may report as `judge`. `producer` is text too: write access to the topic `feedback` protects it (docs/rewards.md).
"""

VERDICTS_SCOPE = "verdicts"
"""Scope of API keys whose feedback the gateway writes as producer `verdicts/KEY_ID`. A trusted Kafka client may use the
name too, as `verdicts/ci`."""

SHADOW_PREFIX = "shadow."
"""Prefix of the names of measured but unpaid feedback."""

_SOURCES_OF = {
    "verify": frozenset({"verifier", "test", "prm", "judge"}),
    "judge": frozenset({"judge"}),
    VERDICTS_SCOPE: frozenset({"verifier", "test", "prm"}),
}
RESTRICTED_SOURCES = frozenset[str]().union(*_SOURCES_OF.values())
"""Sources that count from trusted producers only."""


def may_report(producer: str, source: str) -> bool:
    """Return True if feedback of a producer (`NAME/VERSION`) counts under its source."""
    return source not in RESTRICTED_SOURCES or source in _SOURCES_OF.get(_name(producer), ())


def may_give_verdicts(producer: str) -> bool:
    """Return True if a producer may report for any restricted source, and so retract such feedback."""
    return _name(producer) in _SOURCES_OF


def _name(producer: str) -> str:
    return producer.partition("/")[0]
