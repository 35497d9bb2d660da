"""Post decisions to an address, signed, in a thread of its own: the controller never waits for the receiver.

Headers and signature are those of Standard Webhooks 1.0 (standardwebhooks.com), for which receivers have libraries:
`webhook-signature: v1,BASE64(HMAC-SHA256(key, "ID.TIMESTAMP.BODY"))`. A message's id is derived from the decision and
its state, so that a receiver recognizes one that is sent again.

A message is kept in memory only: the log has each decision. A controller that starts to act sends `awaiting` again for
each decision that waits for people, with the same id.
"""

import base64
import binascii
import hashlib
import hmac
import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import Empty, Full, Queue

import orjson
from httpx2 import Client, HTTPError

from stepstream.config.control import ControlSettings
from stepstream.core.process import Fatal
from stepstream.services.control.decide.decide import JOB
from stepstream.topics.events import Decision
from stepstream.topics.ids import derived_id

log = logging.getLogger(__name__)

_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
_GIVE_UP_S = 3600.0
_MOST_WAITING = 1000
_POLL_S = 0.2
_RETRIED = {408, 425, 429}
_KEPT_BACK = {"event_id", "occurred_at_us", "lost"}


@dataclass(frozen=True, slots=True)
class Message:
    """One POST."""

    id: str
    body: bytes


def key_of(secret: str) -> bytes:
    """Return the key of a secret, base64 with or without the prefix `whsec_`.

    Raises:
        Fatal: it is no base64, or shorter than 24 bytes.
    """
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        key = b""
    if len(key) < 24:
        raise Fatal(
            "STEPSTREAM_CONTROL_WEBHOOK_SECRET must be at least 24 bytes in base64: `openssl rand -base64 32` makes one"
        )
    return key


def message_of(decision: Decision, state: str, description: str = "") -> Message:
    """Return the message about a decision that reached a state: `awaiting`, `done`, `failed`, `rejected`, `expired`."""
    event_id = decision["event_id"]
    at = datetime.fromtimestamp(decision["occurred_at_us"] / 1e6, UTC)
    data = {name: value for name, value in decision.items() if name not in _KEPT_BACK}
    data |= {"id": event_id, "state": state, "description": description}
    body = {"type": f"decision.{state}", "timestamp": at.isoformat(), "data": data}
    return Message(derived_id(JOB, "webhook", event_id, state, tenant=decision["tenant"]), orjson.dumps(body))


def signed_headers(message: Message, key: bytes, at_s: int) -> dict[str, str]:
    """Return the headers of an attempt at `at_s` seconds since the Unix epoch."""
    signed = b".".join((message.id.encode(), str(at_s).encode(), message.body))
    signature = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    return {
        "content-type": "application/json",
        "webhook-id": message.id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": f"v1,{signature}",
    }


def open_webhook(control: ControlSettings, results: Callable[[str], None]) -> "AbstractContextManager[Webhook | None]":
    """Return the webhook of the settings; None: there is no address.

    Raises:
        Fatal: the secret is missing or invalid.
    """
    if not control.webhook_url:
        return nullcontext()
    return Webhook(control.webhook_url, control.webhook_secret.get_secret_value(), control.webhook_timeout_s, results)


class Webhook(AbstractContextManager["Webhook"]):
    """Sends messages in order. `send` never blocks. Close it, which drops what waits."""

    def __init__(
        self,
        url: str,
        secret: str,
        timeout_s: float,
        results: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the thread.

        Args:
            url: address of the receiver.
            secret: key of the signature in base64.
            timeout_s: timeout of one attempt.
            results: called with the result of each message: `delivered`, `refused`, `given_up` or `dropped`.
            clock: monotonic clock, in seconds.

        Raises:
            Fatal: the secret is invalid.
        """
        self._url, self._key, self._timeout_s = url, key_of(secret), timeout_s
        self._results, self._clock = results, clock
        self._waiting: Queue[Message] = Queue(_MOST_WAITING)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        self._thread.start()

    def send(self, decision: Decision, state: str, description: str = "") -> None:
        """Queue a message; drop it with an error in the log if 1,000 wait."""
        try:
            self._waiting.put_nowait(message_of(decision, state, description))
        except Full:
            self._results("dropped")
            log.error("dropped the message about decision %s: %d wait already", decision["event_id"], _MOST_WAITING)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread; an attempt in progress ends within its timeout."""
        self._closing.set()
        self._thread.join(self._timeout_s + 1)

    def _run(self) -> None:
        with Client(timeout=self._timeout_s) as client:
            while not self._closing.is_set():
                try:
                    message = self._waiting.get(timeout=_POLL_S)
                except Empty:
                    continue
                self._deliver(client, message)

    def _deliver(self, client: Client, message: Message) -> None:
        """Send until it is taken, refused for good, an hour has passed, or the sender is closed."""
        until, wait_s = self._clock() + _GIVE_UP_S, _FIRST_WAIT_S
        while True:
            fault, is_final = self._attempt(client, message)
            if not fault:
                self._results("delivered")
                return
            if is_final or self._clock() >= until:
                self._results("refused" if is_final else "given_up")
                log.error("gave up on the message %s: %s", message.id, fault)
                return
            log.warning("sends the message %s again in %.0f s: %s", message.id, wait_s, fault)
            if self._closing.wait(wait_s):
                return
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _attempt(self, client: Client, message: Message) -> tuple[str, bool]:
        """Return the fault of one attempt, empty: none; and whether another attempt cannot help."""
        headers = signed_headers(message, self._key, int(time.time()))
        try:
            status = client.post(self._url, content=message.body, headers=headers).status_code
        except (HTTPError, OSError) as error:  # the text of the error may contain the address, which may be a secret
            return type(error).__name__, False
        if status < 300:
            return "", False
        return f"status {status}", status < 500 and status not in _RETRIED
