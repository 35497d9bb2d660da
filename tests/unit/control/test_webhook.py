"""The webhook: signed messages, sent again with backoff, and a sender that never waits for the receiver."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator

import pytest
from waiting import wait_until
from webhook_receiver import KEY, SECRET, Receiver

from stepstream.config.control import ControlSettings
from stepstream.core.process import Fatal
from stepstream.services.control import webhook
from stepstream.services.control.webhook import Webhook, key_of, open_webhook
from stepstream.topics.events import Decision, new_decision


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(webhook, "_FIRST_WAIT_S", 0.01)
    found = Receiver()
    yield found
    found.close()


def webhook_to(receiver: Receiver) -> Webhook:
    return Webhook(receiver.url, SECRET, 10.0, receiver.results.append)


def decision(id: str = "d1") -> Decision:
    return new_decision(event_id=id, occurred_at_us=0, agent="shop", model="m", action="canary", reason="it is better")


def test_a_message_is_signed_as_standard_webhooks_say(receiver: Receiver) -> None:
    with webhook_to(receiver) as sender:
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
    with webhook_to(receiver) as sender:
        sender.send(decision(), "done")
        sender.send(decision("d2"), "done")
        wait_until(lambda: len(receiver.requests) == 4)
    ids = [headers["webhook-id"] for headers, _ in receiver.requests]
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert receiver.results[:1] == ["delivered"]


def test_a_message_that_the_receiver_refuses_is_given_up(receiver: Receiver) -> None:
    receiver.statuses = [410]
    with webhook_to(receiver) as sender:
        sender.send(decision(), "done")
        sender.send(decision("d2"), "done")
        wait_until(lambda: len(receiver.requests) == 2)
    assert receiver.requests[0][0]["webhook-id"] != receiver.requests[1][0]["webhook-id"]
    assert receiver.results[:1] == ["refused"]


def test_a_receiver_that_does_not_answer_delays_nobody(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "_MOST_WAITING", 3)
    receiver.held.clear()
    with webhook_to(receiver) as sender:
        for number in range(10):
            sender.send(decision(str(number)), "done")  # would block here
        assert "dropped the message about decision 9" in caplog.text
        assert receiver.results[-1] == "dropped"
        receiver.held.set()
    assert SECRET not in caplog.text


def test_a_secret_that_is_too_weak_is_refused() -> None:
    assert key_of(SECRET) == key_of(SECRET.removeprefix("whsec_")) == KEY
    for secret in ("", "password", base64.b64encode(b"short").decode()):
        with pytest.raises(Fatal, match="openssl rand -base64 32"):
            key_of(secret)


def test_settings_open_the_webhook_only_with_an_address_and_a_valid_secret() -> None:
    results: list[str] = []
    with open_webhook(ControlSettings(), results.append) as sender:
        assert sender is None
    with pytest.raises(Fatal, match="STEPSTREAM_CONTROL_WEBHOOK_SECRET"):
        open_webhook(ControlSettings(webhook_url="https://people.example/hook"), results.append)
