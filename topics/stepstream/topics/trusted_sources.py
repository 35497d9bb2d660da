"""Whose word counts as a verdict: who may speak as a verifier, a test, a process reward model or a judge. Pure.

`source` of feedback is what its writer says of itself. For sources from which a reward is expected to be sound that is
not enough: such feedback counts only where its `producer` is a program that may speak for the source. A judge has to be
calibrated before it counts, and only our jobs know whether it is, so nobody else speaks for `judge`. `producer` is text
too: what keeps others from using these names is who may write to the topic `feedback` (docs/rewards.md).
"""

SCOPE = "verdicts"
"""Scope of the API keys whose feedback the gateway writes as `verdicts/KEY_ID`; others may write so if they are
trusted, as `verdicts/ci`."""

_SPEAKS_FOR = {
    "verify": frozenset({"verifier", "test", "prm", "judge"}),
    "judge": frozenset({"judge"}),
    SCOPE: frozenset({"verifier", "test", "prm"}),
}
VERDICTS = frozenset[str]().union(*_SPEAKS_FOR.values())
"""Sources that not everybody may name."""


def speaks_for(producer: str, source: str) -> bool:
    """Whether feedback of a producer (`NAME/VERSION`) counts as what its source says."""
    return source not in VERDICTS or source in _SPEAKS_FOR.get(_name(producer), ())


def gives_verdicts(producer: str) -> bool:
    """Whether a producer speaks for any such source: it may take verdicts back."""
    return _name(producer) in _SPEAKS_FOR


def _name(producer: str) -> str:
    return producer.partition("/")[0]


SHADOW = "shadow."
