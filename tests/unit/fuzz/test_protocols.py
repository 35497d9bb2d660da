"""Fuzz the protocols of model calls: requests are sent or refused, answers read or called `malformed_response`."""

import contextlib
import random
from itertools import count

import orjson
import pytest
from fuzzing import fuzz, refused
from mutations import json_bytes, mutated
from protocol_samples import CHAT_EVENTS, CHAT_REPLY, SAMPLES, Sample

from stepstream.config import Settings
from stepstream.services.gateway.call_plan import parse_request
from stepstream.services.gateway.context.cache import ContextCache
from stepstream.services.gateway.context.endings import EndingFile
from stepstream.services.gateway.context.step_indices import StepIndexFile
from stepstream.services.gateway.context.tree import prompt_of
from stepstream.services.gateway.errors import GatewayError
from stepstream.services.gateway.identity import Identity
from stepstream.services.gateway.protocols.base import Answer, Conversation, RequestedAdditions
from stepstream.services.gateway.protocols.chat.protocol import CHAT, with_worker_fields
from stepstream.services.gateway.step_builder import Call, Timing, build_step
from stepstream.services.gateway.streams import PARSE_ERRORS, NativeRelay, TranslatedRelay, parse_object, rename_model
from stepstream.services.gateway.train_sampling import apply_train_sampling
from stepstream.topics.codec import Codec

ADDITIONS = RequestedAdditions(logprobs=False, token_ids=False, model="demo")


class Gateway:
    """The gateway's functions for one call, without network and clock."""

    def __init__(self, sample: Sample, codec: Codec) -> None:
        names = count()
        self._sample = sample
        self._protocol = sample.protocol
        self._conversation = sample.protocol.read(sample.request)
        self._contexts = ContextCache(10, 1 << 20, lambda: f"t{next(names)}", StepIndexFile(), EndingFile())
        self._codec = codec

    def take_request(self, rng: random.Random) -> None:
        """Read a request, record it, and write the body for a provider and for a worker."""
        body = json_bytes(mutated([self._sample.request], rng), rng)
        try:
            request = self._protocol.resolve_references(parse_request(body), lambda item_id: None)
            self._record(self._protocol.read(request), Answer(self._conversation.messages[0]))
            self._protocol.requested_additions(request)
            self._protocol.with_additions(body, request, plain=True)
            translation = self._protocol.translation(request, None)
            chat = request if translation is None else translation.request
            chat = apply_train_sampling(chat, rng.choice(("force", "reject")))
            CHAT.read(chat)
            with_worker_fields(orjson.dumps(chat), chat, 1)
        except GatewayError as error:
            refused(error)

    def take_reply(self, rng: random.Random) -> None:
        """Read a reply, record its answers, and write the caller's."""
        is_translated = self._protocol is not CHAT and rng.random() < 0.5
        protocol = CHAT if is_translated else self._protocol
        body = parse_object(json_bytes(mutated([CHAT_REPLY if is_translated else self._sample.reply], rng), rng))
        if body is None:
            return
        rename_model(body, ADDITIONS)
        try:
            answer = protocol.answer(body)
            protocol.strip(body, ADDITIONS)
            if is_translated and answer.error is None:
                translation = self._protocol.translation(self._sample.request, None)
                assert translation is not None
                orjson.dumps(translation.reply(body))
        except PARSE_ERRORS:  # the answer becomes `malformed_response`
            return
        for each in answer.all_choices():
            self._record(self._conversation, each)

    def take_stream(self, rng: random.Random) -> None:
        """Relay a stream and record its answer: the caller's stream ends after any bytes of the upstream."""
        relay: NativeRelay | TranslatedRelay
        translation = self._protocol.translation(self._sample.request, None) if rng.random() < 0.5 else None
        if translation is None:
            events, relay = self._sample.events, NativeRelay(self._protocol, ADDITIONS, 0)
        else:
            events, relay = CHAT_EVENTS, TranslatedRelay(self._protocol, translation, ADDITIONS, 0)
        for event in events:
            data = json_bytes(mutated([event], rng), rng) if rng.random() < 0.3 else orjson.dumps(event)
            relay.feed(b"data: " + data + b"\n\n")
        if rng.random() < 0.9:
            relay.end()
        else:
            relay.end_with_error("the upstream is silent", "upstream_silent")
        with contextlib.suppress(*PARSE_ERRORS):  # the answer becomes `malformed_response`
            for each in relay.answer().all_choices():
                self._record(self._conversation, each)

    def _record(self, conversation: Conversation, answer: Answer) -> None:
        identity = Identity("", "agent", "train", "shop")
        prompt = prompt_of(conversation.messages)
        position = self._contexts.place(identity.tenant, "", None, prompt)
        call = Call(identity, conversation, prompt, position, "e", 1)
        self._codec.body("steps", build_step(self._contexts, call, answer, Timing(1.0), "test/1"))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_protocol_takes_any_request_and_any_answer(name: str) -> None:
    codec = Codec(Settings())
    gateway = Gateway(SAMPLES[name], codec)
    parts = (gateway.take_request, gateway.take_reply, gateway.take_stream)
    try:
        fuzz(lambda rng: rng.choice(parts)(rng))
    finally:
        codec.close()
