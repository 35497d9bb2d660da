"""Read the identity of a call: `x-stepstream-*` headers, session and trace, with the settings as defaults. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast, get_args
from urllib.parse import unquote_to_bytes

from stepstream.config import GatewaySettings
from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.grant import ANYTHING, Grant
from stepstream.services.posted_feedback import LARGEST_INDEX, LONGEST
from stepstream.topics.events import Consent

PREFIX = b"x-stepstream-"
CONSENTS = get_args(Consent)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_CREDENTIALS = PREFIX + b"key"  # api_keys.py reads it
_FIELDS = {
    b"trajectory": "trajectory_id",
    b"step": "step_index",
    b"task": "task_id",
    b"group": "group_id",
    b"parent": "parent_trajectory_id",
    b"parent-step": "parent_step_index",
    b"agent": "agent",
    b"environment": "environment",
    b"harness": "harness_version",
    b"apply-harness": "applies_harness",
    b"split": "split",
    b"consent": "consent",
    b"tenant": "tenant",
    b"user": "user",
}
_INDICES = {"step_index", "parent_step_index"}


@dataclass(slots=True)
class Identity:
    """The trajectory, task, tenant and person of a call."""

    trajectory_id: str
    """Empty: the call names none."""
    agent: str
    consent: Consent
    tenant: str
    step_index: int | None = None
    """None: the gateway counts."""
    task_id: str = ""
    group_id: str | None = None
    parent_trajectory_id: str | None = None
    parent_step_index: int | None = None
    environment: str = ""
    harness_version: str = ""
    applies_harness: bool = False
    """True: the gateway applies the agent's harness to the call."""
    split: str = "train"
    user: str | None = None
    traceparent: str | None = None

    @property
    def trace_id(self) -> str:
        """Trace id of the call (W3C Trace Context: 32 hexadecimal digits); empty: none, or malformed."""
        match = _TRACEPARENT.match(self.traceparent) if self.traceparent else None
        return "" if match is None or match[1] == "0" * 32 else match[1]

    @property
    def span_id(self) -> str:
        """Span id of the call's request, 16 hexadecimal digits; empty: none, or malformed."""
        match = _TRACEPARENT.match(self.traceparent) if self.traceparent else None
        return "" if match is None else match[2]


def identify(
    headers: Iterable[tuple[bytes, bytes]], defaults: GatewaySettings, session: str = "", grant: Grant = ANYTHING
) -> Identity:
    """Return the identity in a call's headers, whose names are in lower case.

    Args:
        headers: headers of the request.
        defaults: values for missing headers.
        session: id of the trajectory if no header names one.
        grant: the tenant of its key overrides the header, and its ceiling lowers the consent.

    Raises:
        BadRequest: an unknown `x-stepstream-*` header, or an invalid value of a header or the session.
    """
    identity = Identity(trajectory_id="", agent=defaults.agent, consent=defaults.consent, tenant=defaults.tenant)
    identity.applies_harness = grant.applies_harness
    for name, value in headers:
        if name.startswith(PREFIX):
            if name != _CREDENTIALS:
                _set(identity, name, value)
        elif name == b"traceparent":
            identity.traceparent = value.decode("latin-1")
    if not identity.trajectory_id and session:
        if len(session) > LONGEST:
            raise BadRequest(f"the session is longer than {LONGEST} characters")
        if not session.isprintable():  # it is returned in a header
            raise BadRequest("the session has characters that cannot be printed")
        identity.trajectory_id = session
    if grant.tenant is not None:
        identity.tenant = grant.tenant
    identity.consent = grant.capped(identity.consent)
    return identity


def _set(identity: Identity, name: bytes, value: bytes) -> None:
    extended = name.endswith(b"*")
    field = _FIELDS.get(name[len(PREFIX) :].removesuffix(b"*"))
    if field is None:
        known = ", ".join(f"x-stepstream-{key.decode()}" for key in _FIELDS)
        raise BadRequest(f"unknown header {name.decode('latin-1')}; known: {known}")
    if not value:
        return  # like a missing header: a template may have an empty variable
    try:
        text = _decode_extended(name, value) if extended else value.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"header {name.decode()} is not UTF-8") from None
    if len(text) > LONGEST:
        raise BadRequest(f"header {name.decode()} is longer than {LONGEST} characters")
    if field in _INDICES:
        if not text.isdecimal() or int(text) > LARGEST_INDEX:
            raise BadRequest(f"header {name.decode()} must be a whole number from 0, not '{text}'")
        setattr(identity, field, int(text))
    elif field == "applies_harness":
        if text not in ("true", "false"):
            raise BadRequest(f"header {name.decode()} must be true or false, not '{text}'")
        identity.applies_harness = text == "true"
    elif field == "consent":
        identity.consent = consent_of(text, f"header {name.decode()}")
    else:
        setattr(identity, field, text)


def _decode_extended(name: bytes, value: bytes) -> str:
    """Decode a value in the form of RFC 8187, for clients that send only ASCII: `UTF-8''Jos%C3%A9`.

    Raises:
        BadRequest: another form.
        UnicodeDecodeError: not UTF-8.
    """
    charset, marks, encoded = value.partition(b"''")
    if charset.upper() != b"UTF-8" or not marks:
        raise BadRequest(f"header {name.decode()} must begin with UTF-8''")
    text = unquote_to_bytes(encoded).decode()
    if not text.isprintable():  # it may be returned in a header
        raise BadRequest(f"header {name.decode()} has characters that cannot be printed")
    return text


def consent_of(text: str, name: str) -> Consent:
    """Return `text` as a consent; `name` names its source in the error.

    Raises:
        BadRequest: unknown; a guess could permit training without consent.
    """
    if text not in CONSENTS:
        raise BadRequest(f"{name} must be one of {', '.join(CONSENTS)}, not '{text}'")
    return cast(Consent, text)
