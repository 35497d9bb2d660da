"""Whose a span's step is: what the span says, else what is around it, else where it comes from."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast, get_args

from stepstream.services.gateway.otlp.attributes import Attributes, text
from stepstream.services.gateway.otlp.spans import Span
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.topics.events import Consent

CONSENTS = frozenset(get_args(Consent))
_PERSONS = "stepstream.user", "user.id", "enduser.id"
NAMES = frozenset(
    {
        "gen_ai.conversation.id",
        "session.id",
        "user.id",
        "enduser.id",
        "stepstream.consent",
        "stepstream.environment",
        "stepstream.group_id",
        "stepstream.harness_version",
        "stepstream.parent_trajectory_id",
        "stepstream.split",
        "stepstream.task_id",
        "stepstream.trajectory_id",
        "stepstream.user",
    }
)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a span that does not say is taken to mean."""

    tenant: str
    consent: Consent
    agent: str


@dataclass(slots=True)
class Identity:
    """Whose steps spans are that stand in one place of a trace and say nothing else themselves."""

    fields: dict[str, Any]
    """Fields of the step."""
    trajectory_id: str
    """Empty: it follows from the trace."""
    parent_trajectory_id: str
    conversation: str


class Identities:
    """The identities of one trace's spans; siblings mostly share one."""

    def __init__(self, trace: Trace, defaults: Defaults) -> None:
        self._trace = trace
        self._defaults = defaults
        self._shared: dict[tuple[str, int], Identity] = {}

    def of(self, span: Span) -> Identity:
        """The identity of a span's step."""
        if not NAMES.isdisjoint(span.attributes):
            return self._made(span, span.attributes)
        place = span.parent_id, id(span.resource)
        found = self._shared.get(place)
        if found is None:
            found = self._shared[place] = self._made(span, {})
        return found

    def _made(self, span: Span, own: Attributes) -> Identity:
        around = [holder.attributes for holder in self._trace.above(span)]
        return identity_of((span.resource.attributes, *reversed(around), own), self._defaults)


def identity_of(sources: Iterable[Attributes], defaults: Defaults) -> Identity:
    """The identity that attributes tell of; of a name that comes several times, the last."""
    said: Attributes = {}
    for attributes in sources:
        for name in NAMES.intersection(attributes):
            if attributes[name] not in (None, ""):
                said[name] = attributes[name]
    return Identity(
        {
            "tenant": defaults.tenant,
            "consent": consent_of(said["stepstream.consent"]) if "stepstream.consent" in said else defaults.consent,
            "user": user_of(said),
            "task_id": text(said.get("stepstream.task_id")),
            "group_id": text(said.get("stepstream.group_id")) or None,
            "environment": text(said.get("stepstream.environment")),
            "harness_version": text(said.get("stepstream.harness_version")),
            "split": text(said.get("stepstream.split")) or "train",
        },
        text(said.get("stepstream.trajectory_id")),
        text(said.get("stepstream.parent_trajectory_id")),
        text(said.get("gen_ai.conversation.id") or said.get("session.id")),
    )


def consent_of(said: Any) -> Consent:
    """A consent that an attribute names; one that is none of ours allows nothing."""
    return cast(Consent, said) if isinstance(said, str) and said in CONSENTS else "none"


def user_of(said: Attributes) -> str | None:
    """The person that attributes name."""
    return text(next((said[name] for name in _PERSONS if said.get(name)), None)) or None
