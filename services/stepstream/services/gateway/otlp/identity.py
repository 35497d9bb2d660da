"""Find a step's identity (person, task, trajectory) in its span, the spans around it, and its resource."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast, get_args

from stepstream.services.gateway.grant import stricter
from stepstream.services.gateway.otlp.attributes import Attributes, text
from stepstream.services.gateway.otlp.spans import Span
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.topics.events import Consent

CONSENTS = frozenset(get_args(Consent))
_PERSONS = "stepstream.user", "user.id", "enduser.id"
IDENTITY_ATTRIBUTES = frozenset(
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
    """Values for spans that state none."""

    tenant: str
    consent: Consent
    agent: str
    consent_ceiling: Consent = "train"
    """The most that events may permit, also those that state more."""


@dataclass(slots=True)
class Identity:
    """Identity of the steps of sibling spans without identity attributes of their own."""

    fields: dict[str, Any]
    """Identity fields of the step."""
    trajectory_id: str
    """Empty: derived from the trace."""
    parent_trajectory_id: str
    conversation: str


class Identities:
    """Identities of one trace's spans; siblings usually share one."""

    def __init__(self, trace: Trace, defaults: Defaults) -> None:
        self._trace = trace
        self._defaults = defaults
        self._shared: dict[tuple[str, int], Identity] = {}

    def of(self, span: Span) -> Identity:
        """Return the identity of a span's step."""
        if not IDENTITY_ATTRIBUTES.isdisjoint(span.attributes):
            return self._merge(span, span.attributes)
        key = span.parent_id, id(span.resource)
        identity = self._shared.get(key)
        if identity is None:
            identity = self._shared[key] = self._merge(span, {})
        return identity

    def _merge(self, span: Span, own: Attributes) -> Identity:
        around = [holder.attributes for holder in self._trace.ancestors(span)]
        return identity_of((span.resource.attributes, *reversed(around), own), self._defaults)


def identity_of(sources: Iterable[Attributes], defaults: Defaults) -> Identity:
    """Merge attributes into an identity; later sources win."""
    merged: Attributes = {}
    for attributes in sources:
        for name in IDENTITY_ATTRIBUTES.intersection(attributes):
            if attributes[name] not in (None, ""):
                merged[name] = attributes[name]
    return Identity(
        {
            "tenant": defaults.tenant,
            "consent": stricter(
                consent_of(merged["stepstream.consent"]) if "stepstream.consent" in merged else defaults.consent,
                defaults.consent_ceiling,
            ),
            "user": user_of(merged),
            "task_id": text(merged.get("stepstream.task_id")),
            "group_id": text(merged.get("stepstream.group_id")) or None,
            "environment": text(merged.get("stepstream.environment")),
            "harness_version": text(merged.get("stepstream.harness_version")),
            "split": text(merged.get("stepstream.split")) or "train",
        },
        text(merged.get("stepstream.trajectory_id")),
        text(merged.get("stepstream.parent_trajectory_id")),
        text(merged.get("gen_ai.conversation.id") or merged.get("session.id")),
    )


def consent_of(value: Any) -> Consent:
    """Return the consent in an attribute; an unknown value means `none`."""
    return cast(Consent, value) if isinstance(value, str) and value in CONSENTS else "none"


def user_of(attributes: Attributes) -> str | None:
    """Return the person that attributes name; None: nobody."""
    return text(next((attributes[name] for name in _PERSONS if attributes.get(name)), None)) or None
