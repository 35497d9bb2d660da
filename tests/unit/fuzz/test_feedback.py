"""Fuzz feedback: every body becomes valid events or is refused."""

import random

from fuzzing import fuzz, refused
from mutations import json_bytes, mutated, mutated_bytes

from stepstream.config import Settings
from stepstream.core.slices import at_once
from stepstream.services.gateway.errors import GatewayError
from stepstream.services.gateway.feedback import check_content_type, feedback_event, parse_feedback
from stepstream.services.gateway.identity import Identity, identify
from stepstream.topics.codec import Codec

ITEM = {
    "trajectory_id": "t1", "name": "thumbs", "step_index": 0, "tool_call_id": "c1", "value": 1.0, "category": "c",
    "comment": "good", "demonstration": {"role": "assistant", "content": "x"}, "source": "user",
    "ends_trajectory": "terminated", "last_step_index": 3, "consent": "train", "tenant": "shop", "user": "maria",
}  # fmt: skip
LONG = [{**ITEM, "comment": "x" * 70_000}, ITEM]
"""A list that is read item by item."""
HEADERS = [
    (b"content-type", b"application/json; charset=utf-8"),
    (b"x-stepstream-user*", b"UTF-8''Jos%C3%A9"),
    (b"x-stepstream-step", b"3"),
    (b"x-stepstream-tenant", b"a"),
    (b"x-stepstream-consent", b"train"),
]


def test_feedback_takes_any_body() -> None:
    codec, defaults = Codec(Settings()), Settings().gateway

    def target(rng: random.Random) -> None:
        identity = Identity("", "agent", "train", "shop")
        seeds = [LONG] if rng.random() < 0.02 else [ITEM, [ITEM, ITEM]]
        try:
            if rng.random() < 0.3:
                headers = [(name, header_value(value, rng)) for name, value in HEADERS]
                check_content_type(headers)
                identity = identify(headers, defaults)
            items, _ = at_once(parse_feedback(json_bytes(mutated(seeds, rng), rng)))
        except GatewayError as error:
            refused(error)
            return
        for posted in items:
            codec.body("feedback", feedback_event(posted, identity, 1, "test/1"))

    try:
        fuzz(target)
    finally:
        codec.close()


def header_value(value: bytes, rng: random.Random) -> bytes:
    return mutated_bytes(value, rng) if rng.random() < 0.3 else value
