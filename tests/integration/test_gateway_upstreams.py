"""Test several upstreams behind one gateway, and how a call gets its trajectory: key, session, trace or messages."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest
from gateway_fixtures import Recorded, gateway_process, gateway_settings, write_key
from scripted_upstream import ScriptedUpstream, prompt_ids
from service_process import ServiceProcess
from waiting import TIMEOUT_S, wait_until

from stepstream.config import ProviderSettings, Settings, environment_of
from stepstream.embedded.ports import free_block

QUESTION = {"role": "user", "content": "q:a+c"}


@pytest.fixture(scope="module")
def provider() -> Iterator[ScriptedUpstream]:
    """A provider of the models `gpt-*`."""
    with ScriptedUpstream() as made:
        made.tokens = False
        yield made


@pytest.fixture(scope="module")
def gateway_fields(provider: ScriptedUpstream) -> dict[str, Any]:
    """Give the gateway three providers: a reachable one, an unreachable one, and one of another protocol."""
    nowhere = f"http://127.0.0.1:{free_block(1)}"
    entries = [
        ProviderSettings(name="reachable", base_url=provider.url, models=["gpt-*"]),
        ProviderSettings(name="away", base_url=nowhere, models=["away-*"]),
        ProviderSettings(name="other", base_url=nowhere, models=["claude-*"], protocols=["anthropic"]),
    ]
    return {"providers": entries, "upstream_deadline_s": 0.3}


@pytest.fixture
def http(gateway: ServiceProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{gateway.settings.gateway.port}", timeout=TIMEOUT_S) as client:
        yield client


DECLARED = ("--model", "*", "--consent", "train")


def ask(http: httpx.Client, *messages: Any, path: str = "/v1", model: str = "demo", **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    body = {"model": model, "messages": list(messages or (QUESTION,))}
    return http.post(f"{path}/chat/completions", json=body, headers=names)


def trajectory(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    return reply.headers["x-stepstream-trajectory"]


def message_of(reply: httpx.Response) -> Any:
    return reply.json()["choices"][0]["message"]


def test_a_call_goes_to_the_provider_of_its_model(
    http: httpx.Client, provider: ScriptedUpstream, recorded: Recorded
) -> None:
    name = str(uuid.uuid4())
    headers = {"authorization": "Bearer callers-key", "openai_organization": "org", "x_stepstream_trajectory": name}
    assert message_of(ask(http, model="gpt-5", **headers))["content"] == "hello"
    sent = {key.lower(): value for key, value in provider.headers[-1].items()}
    assert (sent["authorization"], sent["openai-organization"]) == ("Bearer callers-key", "org")
    assert not [key for key in sent if key.startswith("x-stepstream")]
    assert not {"logprobs", "return_token_ids"} & set(provider.requests[-1])  # the provider gives no tokens
    (step,) = recorded("steps", name)
    assert (step["model"], step["fidelity"], step["usage_prompt_tokens"]) == ("gpt-5", "text", None)


def test_an_unreachable_provider_answers_503(http: httpx.Client) -> None:
    reply = ask(http, model="away-1")
    assert (reply.status_code, reply.json()["error"]["type"]) == (503, "upstream_unavailable")
    assert "away cannot be reached" in reply.json()["error"]["message"]
    assert reply.headers["x-stepstream-step"] == "0"  # it is recorded


def test_a_call_is_not_repeated_if_the_provider_disconnects(
    http: httpx.Client, provider: ScriptedUpstream, recorded: Recorded
) -> None:
    name = str(uuid.uuid4())
    before = len(provider.requests)
    provider.hang_up = True
    reply = ask(http, model="gpt-5", x_stepstream_trajectory=name)
    provider.hang_up = False
    assert (reply.status_code, reply.json()["error"]["type"]) == (502, "upstream_disconnected")
    assert len(provider.requests) == before + 1
    (step,) = recorded("steps", name)
    assert (step["error"], step["step_index"], reply.headers["x-stepstream-step"]) == ("upstream_disconnected", 0, "0")


def test_an_untranslatable_protocol_is_rejected(http: httpx.Client) -> None:
    reply = ask(http, model="claude-1")
    assert reply.status_code == 400
    assert "call it by its own path" in reply.json()["error"]["message"]


def test_other_requests_are_passed_on(http: httpx.Client, provider: ScriptedUpstream) -> None:
    assert http.get("/v1/models").json() == http.get("/models").json() == http.get("/t/s/v1/models").json()
    reply = http.post("/v1/embeddings?x=1", json={"model": "gpt-e", "input": "a"}, headers={"x-stepstream-user": "u"})
    assert reply.json() == {"path": "/v1/embeddings?x=1", "body": {"model": "gpt-e", "input": "a"}}
    assert http.post("/v1/embeddings", json={"model": "demo"}).json()["path"] == "/v1/embeddings"
    assert http.get("/v1/admin").status_code == 404  # other paths of a worker are not passed on


@pytest.mark.parametrize("path", ["/t/{}/v1", "/t/{}"])
def test_a_session_in_the_path_is_the_trajectory(http: httpx.Client, recorded: Recorded, path: str) -> None:
    name = str(uuid.uuid4())
    assert trajectory(ask(http, path=path.format(name))) == name
    assert len(recorded("steps", name)) == 1


def test_a_session_after_the_key_is_the_trajectory(http: httpx.Client, upstream: ScriptedUpstream) -> None:
    name = str(uuid.uuid4())
    assert trajectory(ask(http, authorization=f"Bearer any-key:{name}")) == name
    assert "Authorization" not in upstream.headers[-1]


def test_the_trace_id_is_the_trajectory_unless_a_header_names_one(http: httpx.Client) -> None:
    trace = uuid.uuid4().hex
    context = f"00-{trace}-b7ad6b7169203331-01"
    assert trajectory(ask(http, traceparent=context)) == trace
    assert trajectory(ask(http, traceparent=context, x_stepstream_trajectory="named")) == "named"


def test_calls_without_an_id_are_matched_by_their_messages(http: httpx.Client, recorded: Recorded) -> None:
    start = {"role": "user", "content": str(uuid.uuid4())}
    first = ask(http, start)
    name = trajectory(first)
    turn = [start, message_of(first), {"role": "user", "content": "and?"}]
    second = ask(http, *turn)
    third = ask(http, start, message_of(first), {"role": "user", "content": "or?"})
    fourth = ask(http, *turn, message_of(second), {"role": "user", "content": "so?"})
    assert [trajectory(reply) for reply in (second, third, fourth)] == [name] * 3
    assert trajectory(ask(http, {"role": "user", "content": str(uuid.uuid4())})) != name
    steps = sorted(recorded("steps", name, 4), key=lambda step: step["step_index"])
    assert [s["prompt_shared_messages"] for s in steps] == [0, 2, 2, 4]
    assert [s["prompt_shared_step"] for s in steps] == [None, None, 0, 1]
    shared = steps[1]["prompt_shared_tokens"]
    tokens = [*steps[0]["prompt_token_ids"], *steps[0]["response_token_ids"]]
    assert tokens[:shared] + steps[2]["prompt_token_ids"] == prompt_ids([*turn[:2], {"role": "user", "content": "or?"}])


def test_a_key_determines_tenant_and_scopes(
    http: httpx.Client, gateway: ServiceProcess, upstream: ScriptedUpstream, recorded: Recorded
) -> None:
    made = json.loads(keys(gateway, "create", "--tenant", "acme", "--scope", "calls", *DECLARED, "--json"))
    key, name = made["key"], str(uuid.uuid4())
    wait_until(lambda: ask(http, authorization=f"Bearer {key}:{name}").status_code == 200)
    assert "Authorization" not in upstream.headers[-1]
    reply = ask(http, authorization=f"Bearer {key}:{name}", x_stepstream_tenant="claimed")
    assert trajectory(reply) == name
    assert {step["tenant"] for step in recorded("steps", name, 2)} == {"acme"}
    item = {"trajectory_id": name, "name": "n", "value": 1}
    refused = http.post("/v1/feedback", json=item, headers={"x-stepstream-key": key})
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
    for scopes, producer in ((), "gateway"), (("--scope", "feedback", "--scope", "verdicts"), "verdicts"):
        other = json.loads(keys(gateway, "create", "--tenant", "acme", *scopes, *DECLARED, "--json"))
        trajectory_id = str(uuid.uuid4())
        request = {
            "json": item | {"trajectory_id": trajectory_id, "source": "test"},
            "headers": {"x-stepstream-key": other["key"]},
        }
        wait_until(lambda request=request: http.post("/v1/feedback", **request).status_code == 202)  # type: ignore[misc]
        assert recorded("feedback", trajectory_id)[0]["producer"].partition("/")[0] == producer
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        wrong = http.post(path, json={}, headers={"x-api-key": key + "x"})
        assert (wrong.status_code, wrong.json()["type"]) == (401, "error")  # as Anthropic's clients read it
        assert wrong.json()["error"]["type"] == "authentication_error"
    keys(gateway, "change", made["key_id"], "--path", "/v1/embeddings", "--tokens", "1000", "--until", "2100-01-01")
    wait_until(lambda: use_of(gateway, made["key_id"])["used"]["requests"] >= 2)
    listed = use_of(gateway, made["key_id"])
    assert (listed["tenant"], listed["scopes"], listed["revoked"]) == ("acme", ["calls"], False)
    assert (listed["models"], listed["paths"], listed["consent"]) == (["*"], ["/v1/embeddings"], "train")
    assert (listed["token_budget"], listed["ends_at_us"]) == (1000, 4_102_444_800_000_000)
    assert listed["used"]["prompt_tokens"] > 0
    keys(gateway, "revoke", made["key_id"])
    wait_until(lambda: ask(http, authorization=f"Bearer {key}").status_code == 401)
    assert key.split("-", 3)[3] not in gateway.log_text  # the secret, which may hold hyphens itself


def test_required_keys_are_known_without_kafka(
    gateway: ServiceProcess, upstream: ScriptedUpstream, registry_settings: Settings, tmp_path: Any
) -> None:
    key = write_key(gateway.settings)
    settings = gateway_settings(registry_settings, upstream, require_key=True)
    settings = settings.model_copy(update={"paths": settings.paths.model_copy(update={"data": tmp_path})})
    with (
        gateway_process(settings, tmp_path / "log"),
        httpx.Client(base_url=f"http://127.0.0.1:{settings.gateway.port}", timeout=TIMEOUT_S) as http,
    ):
        wait_until(lambda: ask(http, authorization=f"Bearer {key}").status_code == 200)
        assert (ask(http).status_code, http.get("/v1/models").status_code) == (401, 401)
        assert http.get("/health").status_code == 200
        wait_until((tmp_path / "gateway" / "api-keys.json").exists)
    unreachable = settings.kafka.model_copy(update={"bootstrap": f"127.0.0.1:{free_block(1)}"})
    with (
        gateway_process(settings.model_copy(update={"kafka": unreachable}), tmp_path / "log"),
        httpx.Client(base_url=f"http://127.0.0.1:{settings.gateway.port}", timeout=TIMEOUT_S) as http,
    ):
        assert ask(http, authorization=f"Bearer {key}").status_code == 200
        assert ask(http, authorization="Bearer sk-stepstream-00-x").status_code == 503


def use_of(gateway: ServiceProcess, key_id: str) -> dict[str, Any]:
    (listed,) = [row for row in json.loads(keys(gateway, "list", "--json")) if row["key_id"] == key_id]
    return cast("dict[str, Any]", listed)


def keys(gateway: ServiceProcess, *arguments: str) -> str:
    command = [sys.executable, "-m", "stepstream.cli.main", "keys", *arguments]
    environment = os.environ | environment_of(gateway.settings)
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def test_a_sub_agent_may_name_only_its_parent(http: httpx.Client, recorded: Recorded) -> None:
    """The call succeeds even if the gateway does not know the parent, for example after its replacement."""
    parent, child = str(uuid.uuid4()), str(uuid.uuid4())
    for _ in range(2):
        ask(http, x_stepstream_trajectory=parent)
    ask(http, x_stepstream_trajectory=child, x_stepstream_parent=parent)
    (step,) = recorded("steps", child)
    assert (step["parent_trajectory_id"], step["parent_step_index"]) == (parent, 1)

    orphan, unknown = str(uuid.uuid4()), str(uuid.uuid4())
    assert trajectory(ask(http, x_stepstream_trajectory=orphan, x_stepstream_parent=unknown)) == orphan
    (step,) = recorded("steps", orphan)
    assert (step["parent_trajectory_id"], step["parent_step_index"]) == (unknown, None)
    assert "stepstream_gateway_parents_unknown_total 1.0" in http.get("/metrics").text
    assert ask(http, x_stepstream_parent_step="1").status_code == 400
