"""Load OTLP requests of real instrumentations, recorded from tests/agents/otel_agent.py; read their steps."""

import base64
import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from waiting import wait_until

from stepstream.config import Settings
from stepstream.crypto.key_ring import sealing_codec
from stepstream.topics.consumer import EventConsumer

FOLDER = Path(__file__).parents[1] / "data" / "otlp"
GENERATIONS = sorted(path.stem for path in FOLDER.glob("*.json"))


@dataclass(frozen=True)
class Request:
    path: str
    content_type: str
    encoding: str
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        return {"content-type": self.content_type} | ({"content-encoding": self.encoding} if self.encoding else {})


def recorded_requests(generation: str, *, as_json: bool = False, encoding: str = "") -> list[Request]:
    """Return the requests of one run in the order they were sent."""
    requests = []
    for raw in _read(generation)["requests"]:
        body = orjson.dumps(raw["json"]) if as_json else base64.b64decode(raw["protobuf"])
        kind = "application/json" if as_json else "application/x-protobuf"
        pack: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "": bytes}
        packed = pack[encoding](body)
        requests.append(Request(raw["path"], kind, encoding, packed))
    return requests


def trace_id(generation: str) -> str:
    traces = next(raw["json"] for raw in _read(generation)["requests"] if raw["path"] == "/v1/traces")
    return str(traces["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"])


def steps_of(settings: Settings, trajectory_id: str, count: int) -> list[Any]:
    """Wait until a trajectory has `count` steps; return them in order, unsealed."""
    found = _steps(settings, lambda key: key == trajectory_id, count)
    return [found[key, index] for key, index in sorted(found)]


def children_of(settings: Settings, trace_id: str, count: int) -> list[Any]:
    """Wait until the child trajectories of a trace have `count` steps; return them by start time."""
    found = _steps(settings, lambda key: key.startswith(f"{trace_id}-"), count)
    return sorted(found.values(), key=lambda step: int(step["occurred_at_us"]))


def _steps(settings: Settings, wanted: Callable[[str], bool], count: int) -> dict[tuple[str, int], Any]:
    found: dict[tuple[str, int], Any] = {}
    codec = sealing_codec(settings)
    try:
        with EventConsumer(settings.kafka, codec) as consumer:
            consumer.follow(["steps"])

            def arrived() -> bool:
                for event in consumer.poll(1000, 0.1):
                    if wanted(event.key):
                        found[event.key, event.record["step_index"]] = event.record
                return len(found) >= count

            wait_until(arrived)
    finally:
        codec.close()
    return found


def _read(generation: str) -> Any:
    return json.loads((FOLDER / f"{generation}.json").read_text())
