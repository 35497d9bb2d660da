"""Talk to a stack as two persons, of whom one is erased, and read what the stack has of them."""

import json
import urllib.request
from typing import Any

from command_line import stepstream
from waiting import TIMEOUT_S

from stepstream.crypto.key_ring import sealing_codec
from stepstream.embedded.stack import Stack
from stepstream.jobs.clickhouse.connection import connect
from stepstream.jobs.erasure.read_log import read_events
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import Event
from stepstream.topics.producer import EventProducer

ADA, BOB = "patient-ada-4711", "patient-bob-0815"
TEXTS = {ADA: "feverish dreams about Babbage", BOB: "a sprained ankle since Tuesday"}


class World:
    """Client of the stack under test."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.settings = stack, stack.settings
        self.opening = sealing_codec(self.settings)
        self.plain = Codec(self.settings)
        self.producer = EventProducer(self.settings.kafka, self.plain, "test", linger_ms=0)
        self.store = connect(self.settings, database=self.settings.clickhouse.database)

    def close(self) -> None:
        self.opening.close()
        self.plain.close()
        self.store.close_connections()
        self.store.close()

    def talk(self, user: str, trajectory: str) -> None:
        """Make a call through the gateway and give feedback on it."""
        headers = {"x-stepstream-trajectory": trajectory, "x-stepstream-user": user}
        body = {"model": "demo", "messages": [{"role": "user", "content": TEXTS[user]}]}
        self._post("/v1/chat/completions", body, headers)
        signal = {"trajectory_id": trajectory, "name": "outcome", "value": 1.0, "comment": TEXTS[user]}
        self._post("/v1/feedback", signal | {"ends_trajectory": "terminated", "last_step_index": 0}, headers)

    def value(self, query: str) -> Any:
        return self.store.query(query).result_rows[0][0]

    def read(self, topic: str, codec: Codec) -> list[Event]:
        return list(read_events(self.settings, codec, topic))

    def run_command(self, *words: str, status: int = 0) -> Any:
        done = stepstream(self.settings, *words, "--json")
        assert done.status == status, done.stderr + done.stdout
        return json.loads(done.stdout)

    def _post(self, path: str, body: Any, headers: dict[str, str]) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.settings.gateway.port}{path}",
            json.dumps(body).encode(),
            {"content-type": "application/json", **headers},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            assert reply.status < 300


def contains(value: bytes, user: str) -> bool:
    return user.encode() in value or TEXTS[user].encode() in value
