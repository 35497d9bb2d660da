"""Test the Responses API through the gateway: translated for a worker, unchanged to a provider that speaks it."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from gateway_fixtures import Recorded, write_key
from scripted_responses import ScriptedResponses, message_item
from scripted_upstream import LOGPROB, ScriptedUpstream, prompt_ids, response_ids
from service_process import ServiceProcess
from waiting import TIMEOUT_S, wait_until

from stepstream.config import ProviderSettings

GET: Any = {
    "type": "function",
    "name": "get",
    "parameters": {"type": "object", "properties": {"input": {"type": "string"}}},
    "strict": False,
}
NATIVE_CALL = {
    "type": "function_call",
    "id": "fc_" + "7" * 32,
    "status": "completed",
    "call_id": "call_1",
    "name": "get",
    "arguments": '{"input": "a"}',
}


def look_up(request: dict[str, Any]) -> str:
    """Reply as a worker that gets a, then b, and then answers with both."""
    results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    return f"get({'ab'[len(results)]})" if len(results) < 2 else "+".join(results)


@pytest.fixture(scope="module")
def provider() -> Iterator[ScriptedResponses]:
    """A provider of the models `gpt-*`."""
    with ScriptedResponses() as made:
        yield made


@pytest.fixture(scope="module")
def gateway_fields(provider: ScriptedResponses) -> dict[str, Any]:
    """Give the gateway the provider beside its worker."""
    entry = ProviderSettings(name="scripted", base_url=provider.url, models=["gpt-*"], protocols=["responses"])
    shared = {"name": "shared", "models": ["shared-*"], "api_key": "sk-operator"}
    return {"providers": [ProviderSettings.model_validate(entry.model_dump() | shared), entry]}


@pytest.fixture(autouse=True)
def fresh(upstream: ScriptedUpstream, provider: ScriptedResponses) -> Iterator[None]:
    """Reset worker and provider after each test."""
    yield
    upstream.status, upstream.break_after, upstream.reply = 200, None, lambda request: "hello"
    provider.break_after, provider.say = None, lambda request: [message_item("hello")]


@pytest.fixture
def client(gateway: ServiceProcess) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{gateway.settings.gateway.port}/v1"
    with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as made:
        yield made


def new_headers() -> dict[str, str]:
    return {"x-stepstream-trajectory": str(uuid.uuid4())}


def results(response: Any, value: str) -> list[Any]:
    calls = [item for item in response.output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": call.call_id, "output": value} for call in calls]


def check_tree(steps: list[dict[str, Any]], requests: list[dict[str, Any]], texts: list[str], roles: list[str]) -> None:
    """Check that the steps have the worker's tokens, and that each stores only what is new."""
    before: list[int] = []
    for index, (step, request, text) in enumerate(zip(steps, requests, texts, strict=True)):
        assert (step["step_index"], step["fidelity"], step["prompt_shared_step"]) == (index, "token", None)
        prompt = prompt_ids(request["messages"])
        assert step["prompt_shared_tokens"] == len(before)
        assert before + step["prompt_token_ids"] == prompt
        assert step["response_token_ids"] == response_ids(text)
        assert step["response_logprobs"] == [LOGPROB] * len(response_ids(text))
        shared = len(request["messages"]) - len(step["messages"])
        assert step["prompt_shared_messages"] == shared
        assert [message["role"] for message in step["messages"]] == (roles if index == 0 else ["tool"])
        before = prompt + response_ids(text)


@pytest.mark.parametrize("history", ["items", "ids of items", "previous_response_id"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_task_with_tools_is_one_trajectory(
    client: openai.OpenAI, upstream: ScriptedUpstream, recorded: Recorded, history: str, stream: bool
) -> None:
    upstream.reply = look_up
    headers = new_headers()
    first_request = len(upstream.requests)
    items: list[Any] = [{"role": "user", "content": "go"}]
    previous: Any = openai.omit
    for value in ("4", "7", ""):
        call: Any = {"model": "demo", "input": items, "tools": [GET], "instructions": "Be brief."}
        call |= {"extra_headers": headers, "max_output_tokens": 9}
        if stream:
            with client.responses.stream(previous_response_id=previous, **call) as events:
                response: Any = events.get_final_response()
        else:
            response = client.responses.create(previous_response_id=previous, **call)
        new = results(response, value)
        if history == "previous_response_id":
            items, previous = new, response.id
        else:
            complete = [item.to_dict() for item in response.output]
            references = [{"type": "item_reference", "id": item.id} for item in response.output]
            items = [*items, *(complete if history == "items" else references), *new]
    assert response.output_text == "4+7"
    steps = recorded("steps", headers["x-stepstream-trajectory"], 3)
    check_tree(steps, upstream.requests[first_request:], ["get(a)", "get(b)", "4+7"], ["system", "user"])
    assert [step["finish_reason"] for step in steps] == ["tool_calls", "tool_calls", "stop"]
    assert steps[0]["response"]["tool_calls"][0]["name"] == "get"
    assert steps[1]["messages"][0]["tool_call_id"] == "call_1"
    assert steps[2]["sampling"]["max_tokens"] == 9


@pytest.mark.parametrize("killed", [False, True])
def test_a_previous_response_id_continues_its_trajectory(
    client: openai.OpenAI, gateway: ServiceProcess, upstream: ScriptedUpstream, recorded: Recorded, killed: bool
) -> None:
    raw = client.responses.with_raw_response.create(model="demo", input="go", instructions="Old.", user="someone")
    first, trajectory = raw.parse(), raw.headers["x-stepstream-trajectory"]
    recorded("steps", trajectory)
    if killed:
        gateway.kill()
        gateway.start()
    again = client.responses.with_raw_response.create(
        model="demo", input="on", instructions="New.", previous_response_id=first.id
    )
    assert again.headers["x-stepstream-trajectory"] == trajectory
    assert [(message["role"], message["content"]) for message in upstream.requests[-1]["messages"]] == [
        ("system", "New."),
        ("user", "go"),
        ("assistant", "hello"),
        ("user", "on"),
    ]
    steps = recorded("steps", trajectory, 2)
    assert [step["step_index"] for step in steps] == [0, 1]
    assert steps[0]["user"] == "someone"
    # With other instructions the prompt shares no message with the step before.
    assert (steps[1]["prompt_shared_messages"], len(steps[1]["messages"])) == (0, 4)
    references: Any = [{"type": "item_reference", "id": item.id} for item in first.output]
    items = [{"role": "user", "content": "go"}, *references, {"role": "user", "content": "on"}]
    client.responses.create(model="demo", input=items, instructions="Old.", user="someone")
    assert [message["content"] for message in upstream.requests[-1]["messages"]] == ["Old.", "go", "hello", "on"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tools": [{"type": "web_search"}]}, "built-in tool 'web_search'"),
        ({"previous_response_id": "resp_unknown"}, "Previous response with id 'resp_unknown' not found"),
        ({"input": [{"type": "item_reference", "id": "msg_unknown"}]}, "'msg_unknown' is not known here"),
    ],
)
def test_an_unsupported_request_is_rejected_with_its_reason(
    client: openai.OpenAI, fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=text) as raised:
        client.responses.create(**{"model": "demo", "input": "go", **fields})
    unknown = "previous_response_id" in fields
    code_and_param = ("previous_response_not_found", "previous_response_id") if unknown else (None, None)
    assert (raised.value.type, raised.value.code, raised.value.param) == ("invalid_request_error", *code_and_param)


def test_a_workers_error_reaches_the_agent_and_is_recorded(
    client: openai.OpenAI, upstream: ScriptedUpstream, recorded: Recorded
) -> None:
    upstream.status = 429
    headers = new_headers()
    with pytest.raises(openai.RateLimitError, match="scripted"):
        client.responses.create(model="demo", input="go", extra_headers=headers)
    (step,) = recorded("steps", headers["x-stepstream-trajectory"])
    assert (step["error"], step["finish_reason"]) == ("scripted_error", "error")


def test_a_workers_broken_stream_ends_with_an_error_and_is_recorded(
    client: openai.OpenAI, upstream: ScriptedUpstream, recorded: Recorded
) -> None:
    upstream.break_after = 3
    headers = new_headers()
    events = list(client.responses.create(model="demo", input="go", stream=True, extra_headers=headers))
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    (step,) = recorded("steps", headers["x-stepstream-trajectory"])
    assert (step["response"]["content"], step["error"]) == ("hel", "upstream_disconnected")


@pytest.mark.parametrize("stream", [False, True])
def test_a_providers_request_and_reply_pass_unchanged(
    gateway: ServiceProcess, provider: ScriptedResponses, recorded: Recorded, stream: bool
) -> None:
    provider.say = lambda request: [NATIVE_CALL, message_item("Wört")]
    headers = new_headers()
    # No library writes these spaces and this order.
    body = b'{ "model":"gpt-x",  "input":"go", "stream":%b, "include": ["reasoning.encrypted_content"] }'
    sent = body % json.dumps(stream).encode()
    url = f"http://127.0.0.1:{gateway.settings.gateway.port}/v1/responses"
    json_headers = headers | {"content-type": "application/json"}
    answer = httpx.post(url, content=sent, headers=json_headers, timeout=TIMEOUT_S)
    assert answer.status_code == 200
    assert provider.bodies[-1] == sent
    assert answer.content == provider.sent
    (step,) = recorded("steps", headers["x-stepstream-trajectory"])
    assert (step["fidelity"], step["model"], step["finish_reason"]) == ("text", "gpt-x", "tool_calls")
    assert (step["response"]["content"], step["usage_prompt_tokens"], step["usage_response_tokens"]) == ("Wört", 5, 9)
    assert step["response"]["tool_calls"][0]["arguments"] == '{"input": "a"}'
    assert (step["first_token_ms"] is not None) is stream


@pytest.mark.parametrize("history", ["items", "ids of items", "previous_response_id"])
def test_a_conversation_with_a_provider_stores_each_message_once(
    client: openai.OpenAI, provider: ScriptedResponses, recorded: Recorded, history: str
) -> None:
    headers = new_headers()
    provider.say = lambda request: [NATIVE_CALL]
    call: dict[str, Any] = {"model": "gpt-x", "instructions": "Be brief.", "extra_headers": headers}
    first: Any = client.responses.create(input="go", **call)
    provider.say = lambda request: [message_item("7")]
    new = results(first, "7")
    if history == "previous_response_id":
        client.responses.create(input=new, previous_response_id=first.id, **call)
    else:
        complete = [item.model_dump() for item in first.output]
        references = [{"type": "item_reference", "id": item.id} for item in first.output]
        items: Any = [{"role": "user", "content": "go"}, *(complete if history == "items" else references), *new]
        client.responses.create(input=items, **call)
    _, second = recorded("steps", headers["x-stepstream-trajectory"], 2)
    assert (second["prompt_shared_messages"], second["prompt_shared_step"]) == (3, None)
    assert [(message["role"], message["content"]) for message in second["messages"]] == [("tool", "7")]
    assert second["response"]["content"] == "7"


@pytest.fixture(scope="module")
def tenants(gateway: ServiceProcess) -> Iterator[list[httpx.Client]]:
    """Two tenants that may read stored responses, and one of the first that declares no path."""
    stored = {"paths": ["/v1/responses/*"], "models": ["shared-*"]}
    written = [write_key(gateway.settings, tenant="a", **stored), write_key(gateway.settings, tenant="b", **stored)]
    written.append(write_key(gateway.settings, tenant="a", models=["shared-*"], consent="analyse"))
    url = f"http://127.0.0.1:{gateway.settings.gateway.port}"
    clients = [httpx.Client(base_url=url, headers={"x-stepstream-key": key}, timeout=TIMEOUT_S) for key in written]
    for client in clients:
        wait_until(lambda client=client: client.get("/v1/models").status_code == 200)  # type: ignore[misc]
    yield clients
    for client in clients:
        client.close()


def respond(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/responses", json={"model": "shared-1", "input": "go"} | fields)


@pytest.mark.parametrize("stream", [False, True])
def test_another_tenants_response_does_not_exist(
    tenants: list[httpx.Client], provider: ScriptedResponses, stream: bool
) -> None:
    ours, theirs, ours_too = tenants
    first = respond(ours, stream=stream)
    events = [json.loads(line[6:]) for line in first.text.splitlines() if line.startswith("data: ")]
    (name,) = {event["response"]["id"] for event in events if "response" in event} if stream else {first.json()["id"]}
    own = name.partition(".")[0]
    assert respond(ours_too, previous_response_id=name).status_code == 200
    assert provider.requests[-1]["previous_response_id"] == own
    calls = len(provider.requests)
    for guess in (name, own):
        refused = respond(theirs, previous_response_id=guess)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_not_found")
    read = ours.get(f"/v1/responses/{name}")
    assert (read.status_code, read.json()["id"]) == (200, name)
    guesses = (name, own, f"%72{own[1:]}", f"{own}/input_items")
    assert [theirs.get(f"/v1/responses/{guess}").status_code for guess in guesses] == [404] * 4
    assert len(provider.requests) == calls


@pytest.mark.parametrize(
    "path",
    [
        "/v1/files",
        "/v1/fine_tuning/jobs",
        "/v1/responses%2Fresp_1",
        "/t/s%2Fv1%2Fmodels/responses/resp_1",
        "/v1//responses/resp_1",
        "/v1/responses/../files",
        "/v1/responses/%2e%2e/files",
    ],
)
def test_a_key_reaches_no_path_of_the_operators_account_that_it_does_not_declare(
    tenants: list[httpx.Client], path: str
) -> None:
    """`/v1/files` of the provider answers: without the check, the caller would read the operator's files."""
    url = httpx.URL(tenants[1].base_url, raw_path=path.encode())
    refused = tenants[1].get(url)
    assert refused.status_code in (403, 404)
    assert "of-another-tenant" not in refused.text
    assert tenants[2].get("/v1/responses/resp_1").status_code == 403


def test_a_key_calls_only_its_models_and_names_no_stored_objects(tenants: list[httpx.Client]) -> None:
    for fields, error in (
        ({"model": "gpt-x"}, "does not declare the model 'gpt-x'"),
        ({"conversation": "conv_1"}, "does not declare the path /v1/conversations/"),
    ):
        refused = respond(tenants[0], **fields)
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
        assert error in refused.json()["error"]["message"]


def test_the_provider_reads_the_model_that_was_checked(
    tenants: list[httpx.Client], provider: ScriptedResponses
) -> None:
    body = b'{"model": "gpt-x", "previous_response_id": "resp_1", "model": "shared-1", "previous_response_id": null}'
    assert tenants[0].post("/v1/responses", content=body).status_code == 200
    assert provider.bodies[-1] == b'{"model":"shared-1","previous_response_id":null}'


def test_a_keys_ceiling_of_consent_is_recorded(tenants: list[httpx.Client], recorded: Recorded) -> None:
    headers = new_headers()
    body = {"model": "shared-1", "input": "go"}
    tenants[2].post("/v1/responses", json=body, headers=headers | {"x-stepstream-consent": "train"})
    (step,) = recorded("steps", headers["x-stepstream-trajectory"])
    assert (step["tenant"], step["consent"]) == ("a", "analyse")


@pytest.mark.parametrize(
    ("limit", "kind", "header"),
    [
        ({"requests_per_minute": 2}, "rate_limit_error", "retry-after"),
        ({"token_budget": 20}, "insufficient_quota", "x-should-retry"),
    ],
)
def test_a_key_with_a_limit_gets_429(gateway: ServiceProcess, limit: dict[str, int], kind: str, header: str) -> None:
    key = write_key(gateway.settings, **limit)
    url = f"http://127.0.0.1:{gateway.settings.gateway.port}"
    with httpx.Client(base_url=url, headers={"x-stepstream-key": key}, timeout=TIMEOUT_S) as client:
        wait_until(lambda: respond(client).status_code == 200)
        assert respond(client).status_code == 200
        refused = respond(client)
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, kind)
    assert header in refused.headers
