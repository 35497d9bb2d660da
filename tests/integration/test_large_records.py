"""Steps of 2 MB come in by every way, two tenants apart; an erasure and a sweep remove their objects."""

import base64
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from gateway_fixtures import write_key
from scripted_upstream import ScriptedUpstream
from stack_fixtures import with_settings
from stack_world import World
from stream_records import make_steps
from waiting import TIMEOUT_S, wait_until

from stepstream import sdk
from stepstream.config import Settings
from stepstream.crypto.content_store import tenant_folder
from stepstream.crypto.sealing import is_erased
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.topics.codec import Codec
from stepstream.topics.events import new_message
from stepstream.topics.ids import now_us

PROCESSES = ("broker", "registry", "store", "govern", "label", "store-writer", "gateway")
MAIL = "ada@example.org"
WORDS = "the quick brown fox " * 100_000
"""2 MB."""
SECRET = {"first": "walnut-4711", "second": "saffron-0815"}
IMAGE = base64.b64encode(random.Random(7).randbytes(1_500_000)).decode()
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
NAMES = ("answer", "tool-result", "image", "sdk", TRACE)
TOKENS = WORDS[:150_000]
"""Text of as many tokens: their ids and log-probabilities make the record large, not the text."""


@pytest.fixture(scope="module")
def stack(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    with ScriptedUpstream() as upstream:

        def reply(request: dict[str, Any]) -> str:
            wanted = str(request["messages"][-1]["content"])
            upstream.tokens = wanted == "tokens"
            return {"long": f"{WORDS} {MAIL}", "tokens": TOKENS}.get(wanted, "noted")

        upstream.reply = reply
        settings = with_topics_and_tables(isolated(base_settings, tmp_path_factory.mktemp("large")))
        gateway = {"upstreams": [upstream.url], "find_workers": False}
        with Stack(with_settings(settings, gateway=gateway, otlp={"grace_s": 0.1}), PROCESSES) as running:
            yield running


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[World]:
    with World(stack.settings) as opened:
        for tenant in SECRET:
            call_every_way(opened, tenant)
            use_sdk(opened, tenant)
        yield opened


def call_every_way(world: World, tenant: str) -> None:
    """Record large steps through the gateway as one tenant, under names that the other uses too."""
    key = write_key(world.settings, tenant=tenant, scopes=["calls", "otlp"], consent="train")
    url = f"http://127.0.0.1:{world.settings.gateway.port}"
    with httpx.Client(base_url=url, timeout=TIMEOUT_S, headers={"x-stepstream-key": key}) as client:
        wait_until(lambda: client.get("/v1/models").status_code not in (401, 503))

        def post(path: str, name: str, **body: Any) -> None:
            headers = {"x-stepstream-trajectory": name, "x-stepstream-user": "ada"}
            reply = client.post(path, json={"model": "demo", **body}, headers=headers)
            assert reply.status_code == 200, reply.text

        secret = {"role": "system", "content": SECRET[tenant]}
        post("/v1/chat/completions", "answer", messages=[secret, {"role": "user", "content": "long"}])
        call = {"id": "c", "type": "function", "function": {"name": "get", "arguments": "{}"}}
        result = {"role": "tool", "tool_call_id": "c", "content": f"{WORDS} {MAIL}"}
        asked = {"role": "assistant", "content": None, "tool_calls": [call]}
        post("/v1/chat/completions", "tool-result", messages=[secret, asked, result])
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}
        used = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "get", "input": {}}]}
        content = [{"type": "text", "text": MAIL}, image]
        shown = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": content}]}
        post("/v1/messages", "image", max_tokens=9, system=SECRET[tenant], messages=[used, shown])
        post("/v1/chat/completions", "tokens", messages=[secret, {"role": "user", "content": "tokens"}])
        assert client.post("/v1/traces", json=trace(SECRET[tenant])).status_code == 200


def trace(secret: str) -> dict[str, Any]:
    """Return the export of one large call."""
    sent = [{"role": "user", "parts": [{"type": "text", "content": secret}]}]
    got = [{"role": "assistant", "parts": [{"type": "text", "content": f"{WORDS} {MAIL}"}], "finish_reason": "stop"}]
    values = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "demo",
        "gen_ai.input.messages": orjson.dumps(sent).decode(),
        "gen_ai.output.messages": orjson.dumps(got).decode(),
        "user.id": "ada",
    }
    span = {
        "traceId": TRACE,
        "spanId": "b7ad6b7169203331",
        "name": "chat demo",
        "startTimeUnixNano": str(now_us() * 1000),
        "endTimeUnixNano": str(now_us() * 1000 + 1),
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in values.items()],
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def use_sdk(world: World, tenant: str) -> None:
    """Record one large step by the SDK."""
    sdk.configure(world.settings)
    try:
        opened = sdk.trajectory(agent="a", trajectory_id="sdk", tenant=tenant, user="ada", consent="train")
        with opened as trajectory, trajectory.step([SECRET[tenant]], model="demo") as step:
            step.response(f"{WORDS} {MAIL}")
        assert sdk.flush(TIMEOUT_S) == 0
    finally:
        sdk.close()


def steps(world: World, tenant: str, topic: str = "governed-steps") -> dict[str, Any]:
    """Return the steps of a tenant by trajectory."""
    return {record["trajectory_id"]: record for record in world.records(topic) if record and record["tenant"] == tenant}


def objects(world: World, tenant: str) -> set[str]:
    folder = world.settings.paths.data / "large-records"
    return {str(path.relative_to(folder)) for path in (folder / tenant_folder(tenant)).rglob("*") if path.is_file()}


def claims(world: World, tenant: str) -> set[str]:
    """Return the paths that the tenant's records on the log name."""
    found = set()
    opening, world.codec = world.codec, Codec(world.settings)
    try:
        for topic in ("steps", "governed-steps", "labeled-trajectories"):
            records = [record for record in world.records(topic) if record["tenant"] == tenant]
            found |= {record["claim"]["path"] for record in records if record["claim"] is not None}
    finally:
        world.codec = opening
    return found


def test_large_steps_arrive_governed_and_redacted(world: World) -> None:
    everything = {*NAMES, "tokens"}
    wait_until(lambda: steps(world, "first").keys() == everything == steps(world, "second").keys())
    for tenant in SECRET:
        found = steps(world, tenant)
        tokens = found.pop("tokens")
        assert (tokens["fidelity"], len(tokens["response_token_ids"])) == ("token", len(TOKENS) + 1)
        assert len(tokens["response_logprobs"]) == len(TOKENS) + 1
        for name in ("answer", "sdk", TRACE):
            assert len(found[name]["response"]["content"]) > 2_000_000, name
        assert len(found["tool-result"]["messages"][-1]["content"]) > 2_000_000
        assert IMAGE in str(found["image"]["messages"])
        for name, step in found.items():
            assert MAIL not in str(step), name
            assert step["governed"]["redactions"] == {"email": 1}, name
    assert world.records("dead-letters") == []


def test_tenants_with_the_same_names_share_no_object(world: World) -> None:
    for tenant, other in (("first", "second"), ("second", "first")):
        assert all(SECRET[tenant] in str(step) for step in steps(world, tenant).values())
        assert not any(SECRET[other] in str(step) for step in steps(world, tenant).values())
    assert claims(world, "first").isdisjoint(claims(world, "second"))
    assert claims(world, "first") == objects(world, "first")
    plain = [path.read_bytes() for path in (world.settings.paths.data / "large-records").rglob("*") if path.is_file()]
    assert not any(b"quick brown fox" in content or IMAGE.encode() in content for content in plain)


def test_tables_have_the_whole_text(world: World) -> None:
    query = "SELECT count() FROM steps FINAL WHERE tenant = 'first' AND trajectory_id IN ('answer', 'tool-result')"
    world.wait_for_value(query, 2)


def test_a_missing_object_makes_a_dead_letter(world: World) -> None:
    [step] = make_steps("lost", 1, messages=[new_message(role="user", content=WORDS)], at_us=now_us(), tenant="lost")
    value = world.codec.encode("steps", step)
    for path in objects(world, "lost"):
        (world.settings.paths.data / "large-records" / path).unlink()
    world.producer.send_encoded("steps", "lost", value, step)
    world.producer.flush()
    wait_until(lambda: [letter["error"] for letter in world.records("dead-letters")] == ["missing_content"])


def test_an_erasure_removes_the_persons_objects_alone(world: World) -> None:
    kept = objects(world, "second")
    done = world.run_json("erase", "--subject", "ada", "--tenant", "first")
    assert done["objects_removed"] >= 2 * len(NAMES), "a raw and a governed one for each step"
    [proof] = world.run_json("erasures", "show", done["request_id"])
    assert proof["objects_removed"] == done["objects_removed"]
    assert objects(world, "first") == set()
    assert objects(world, "second") == kept
    assert all(map(is_erased, steps(world, "first").values()))
    assert not any(map(is_erased, steps(world, "second").values()))


def test_a_sweep_removes_old_objects_that_no_record_names(world: World) -> None:
    named = claims(world, "second")
    [path, *_] = sorted(named)
    folder = world.settings.paths.data / "large-records" / Path(path).parent.parent
    orphan = folder / "2020-01-01" / ("0" * 64)
    orphan.parent.mkdir()
    orphan.write_bytes(b"x")
    expected = [f"{tenant_folder('second')}/2020-01-01/{'0' * 64}"]
    assert world.run_json("large-records", "sweep", "--dry-run")["removed"] == expected
    assert orphan.exists()
    assert world.run_json("large-records", "sweep")["removed"] == expected
    assert not orphan.exists()
    assert named <= objects(world, "second")
