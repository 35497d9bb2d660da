"""The webhook: signed messages, sent again with backoff, and a sender that never waits for the receiver."""

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from waiting import wait_until

from stepstream.core.process import Fatal
from stepstream.services.control import webhook
from stepstream.services.control.webhook import Webhook, key_of
from stepstream.topics.events import Decision, new_decision

KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


class Receiver:
    """An HTTP server that answers with scripted statuses, then 204, and notes the requests."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.held = threading.Event()
        self.held.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.held.wait()
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.requests.append(({k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def close(self) -> None:
        self.held.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(webhook, "_FIRST_WAIT_S", 0.01)
    found = Receiver()
    yield found
    found.close()


def decision(id: str = "d1") -> Decision:
    return new_decision(event_id=id, occurred_at_us=0, agent="shop", model="m", action="canary", reason="it is better")


def test_a_message_is_signed_as_standard_webhooks_say(receiver: Receiver) -> None:
    with Webhook(receiver.url, SECRET) as sender:
        sender.send(decision(), "awaiting")
        wait_until(lambda: receiver.requests)
    headers, body = receiver.requests[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 300
    content = json.loads(body)
    assert (content["type"], content["data"]["id"], content["data"]["agent"]) == ("decision.awaiting", "d1", "shop")
    assert content["data"]["reason"] == "it is better"


def test_the_example_of_the_standard_is_reproduced() -> None:
    message = webhook.Message("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}')
    headers = webhook.signed_headers(message, key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), 1614265330)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_message_is_sent_again_with_the_same_id_until_it_is_taken(receiver: Receiver) -> None:
    receiver.statuses = [500, 429]
    with Webhook(receiver.url, SECRET) as sender:
        sender.send(decision(), "done")
        sender.send(decision("d2"), "done")
        wait_until(lambda: len(receiver.requests) == 4)
    ids = [headers["webhook-id"] for headers, _ in receiver.requests]
    assert ids[0] == ids[1] == ids[2] != ids[3]


def test_a_message_that_the_receiver_refuses_is_given_up(receiver: Receiver) -> None:
    receiver.statuses = [410]
    with Webhook(receiver.url, SECRET) as sender:
        sender.send(decision(), "done")
        sender.send(decision("d2"), "done")
        wait_until(lambda: len(receiver.requests) == 2)
    assert receiver.requests[0][0]["webhook-id"] != receiver.requests[1][0]["webhook-id"]


def test_a_receiver_that_does_not_answer_delays_nobody(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "_MOST_WAITING", 3)
    receiver.held.clear()
    with Webhook(receiver.url, SECRET) as sender:
        for number in range(10):
            sender.send(decision(str(number)), "done")  # would block here
        assert "dropped the message about decision 9" in caplog.text
        receiver.held.set()
    assert SECRET not in caplog.text


def test_a_secret_that_is_too_weak_is_refused() -> None:
    assert key_of(SECRET) == key_of(SECRET.removeprefix("whsec_")) == KEY
    for secret in ("", "password", base64.b64encode(b"short").decode()):
        with pytest.raises(Fatal, match="openssl rand -base64 32"):
            key_of(secret)
