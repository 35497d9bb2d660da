"""Who and what a call belongs to: its `x-stepstream-*` headers, its session key, its trace; else the settings. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast, get_args
from urllib.parse import unquote_to_bytes

from stepstream.config import GatewaySettings
from stepstream.services.gateway.errors import BadRequest
from stepstream.topics.events import Consent

PREFIX = b"x-stepstream-"
LONGEST = 256
LARGEST_INDEX = 2**31 - 1
CONSENTS = get_args(Consent)


@dataclass(slots=True)
class Identity:
    """A call's place in the log. `step_index` is None where the caller leaves the counting to the gateway."""

    trajectory_id: str
    """Empty: it names none."""
    agent: str
    consent: Consent
    tenant: str
    step_index: int | None = None
    task_id: str = ""
    group_id: str | None = None
    parent_trajectory_id: str | None = None
    parent_step_index: int | None = None
    environment: str = ""
    harness_version: str = ""
    split: str = "train"
    user: str | None = None
    traceparent: str | None = None

    @property
    def trace_id(self) -> str:
        """Trace that the call is part of (W3C Trace Context: 32 hexadecimal digits); empty: none, or malformed."""
        found = _TRACEPARENT.match(self.traceparent) if self.traceparent else None
        return "" if found is None or found[1] == "0" * 32 else found[1]


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_OURS = frozenset({PREFIX + b"key"})  # credentials.py reads it

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
    b"split": "split",
    b"consent": "consent",
    b"tenant": "tenant",
    b"user": "user",
}
_INDICES = {"step_index", "parent_step_index"}


def identify(
    headers: Iterable[tuple[bytes, bytes]], defaults: GatewaySettings, session: str = "", tenant: str | None = None
) -> Identity:
    """The identity that a call's headers (names in lower case) give it.

    Args:
        headers: of the request.
        defaults: what counts where a header is missing.
        session: names the trajectory where no header does.
        tenant: of the API key; it wins over the header.

    Raises:
        BadRequest: a header of ours that is unknown, or one or a session that has a value that cannot be used.
    """
    identity = Identity(trajectory_id="", agent=defaults.agent, consent=defaults.consent, tenant=defaults.tenant)
    for name, value in headers:
        if name.startswith(PREFIX):
            if name not in _OURS:
                _set(identity, name, value)
        elif name == b"traceparent":
            identity.traceparent = value.decode("latin-1")
    if not identity.trajectory_id and session:
        if len(session) > LONGEST:
            raise BadRequest(f"the session is longer than {LONGEST} characters")
        if not session.isprintable():  # it goes back in a header
            raise BadRequest("the session has characters that cannot be printed")
        identity.trajectory_id = session
    if tenant is not None:
        identity.tenant = tenant
    return identity


def _set(identity: Identity, name: bytes, value: bytes) -> None:
    extended = name.endswith(b"*")
    field = _FIELDS.get(name[len(PREFIX) :].removesuffix(b"*"))
    if field is None:
        known = ", ".join(f"x-stepstream-{key.decode()}" for key in _FIELDS)
        raise BadRequest(f"unknown header {name.decode('latin-1')}; known: {known}")
    if not value:
        return  # as if absent, so that a template with an empty variable does no harm
    try:
        text = _extended(name, value) if extended else value.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"header {name.decode()} is not UTF-8") from None
    if len(text) > LONGEST:
        raise BadRequest(f"header {name.decode()} is longer than {LONGEST} characters")
    if field in _INDICES:
        if not text.isdecimal() or int(text) > LARGEST_INDEX:
            raise BadRequest(f"header {name.decode()} must be a whole number from 0, not '{text}'")
        setattr(identity, field, int(text))
    elif field == "consent":
        identity.consent = consent_of(text, f"header {name.decode()}")
    else:
        setattr(identity, field, text)


def _extended(name: bytes, value: bytes) -> str:
    """A header's value in the form of RFC 8187, for clients that send nothing but ASCII: `UTF-8''Jos%C3%A9`.

    Raises:
        BadRequest: it is not in that form.
        UnicodeDecodeError: it is no UTF-8.
    """
    charset, marks, text = value.partition(b"''")
    if charset.upper() != b"UTF-8" or not marks:
        raise BadRequest(f"header {name.decode()} must begin with UTF-8''")
    found = unquote_to_bytes(text).decode()
    if not found.isprintable():  # it may go back in a header
        raise BadRequest(f"header {name.decode()} has characters that cannot be printed")
    return found


def consent_of(text: str, what: str) -> Consent:
    """`text` as a consent.

    Raises:
        BadRequest: it is none; a guess could let an event be learned from that must not be.
    """
    if text not in CONSENTS:
        raise BadRequest(f"{what} must be one of {', '.join(CONSENTS)}, not '{text}'")
    return cast(Consent, text)
