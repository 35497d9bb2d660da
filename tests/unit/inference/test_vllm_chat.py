"""Test which requests vLLM's chat binds to a grammar, with vLLM's own parsers and without its engine."""

import warnings
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from labelled_records import tiny_model
from required_tools import require_package
from transformers import AutoTokenizer

pytestmark = pytest.mark.vllm

MESSAGES = [{"role": "user", "content": "q:a"}]
PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "get"}}


def request_with(*, strict: bool | None, **fields: Any) -> Any:
    """Return vLLM's chat request with one tool."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    function = {"name": "get", "parameters": PARAMETERS} | ({} if strict is None else {"strict": strict})
    body = {"model": "m", "messages": MESSAGES, "tools": [{"type": "function", "function": function}]}
    return ChatCompletionRequest(**body | fields)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    require_package("vllm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what vLLM imports
        for module in ("stepstream.services.inference.vllm_chat", "vllm.tool_parsers.hermes_tool_parser"):
            import_module(module)
    return AutoTokenizer.from_pretrained(tiny_model(tmp_path_factory.mktemp("models") / "m", 1))


@pytest.fixture(params=["hermes", "glm47"])
def chat(request: pytest.FixtureRequest, tokenizer: Any) -> Any:
    """Return the handler above a renderer that only lets the parser adjust the request."""
    from vllm.parser.parser_manager import ParserManager

    from stepstream.services.inference.vllm_chat import RecordedChat

    parser = ParserManager.get_parser(request.param, enable_auto_tools=True)
    assert parser is not None

    async def render_chat(request: Any) -> Any:
        adjusted = parser(tokenizer, request.tools).adjust_request(request=request)
        assert adjusted is request
        handler.bound_by_vllm = request.structured_outputs is not None
        return [], []

    async def check_model(_request: Any) -> None: ...

    handler: Any = RecordedChat.of(SimpleNamespace(online_renderer=SimpleNamespace(render_chat=render_chat)))
    handler._check_model, handler._preflight = check_model, lambda _count: None
    return handler


@pytest.mark.parametrize("fields", [{"strict": True}, {"strict": None, "parallel_tool_calls": False}], ids=str)
async def test_calls_that_the_model_decides_on_follow_no_grammar(chat: Any, fields: dict[str, Any]) -> None:
    request = request_with(**fields)
    await chat.render_chat_request(request)
    assert chat.bound_by_vllm, "vLLM no longer binds such requests: delete what undoes it"
    assert request.structured_outputs is None
    assert request.to_sampling_params(16, {}).structured_outputs is None


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
async def test_forced_calls_keep_their_grammar(chat: Any, choice: Any) -> None:
    """The gateway records it as the constraint `tool_choice`."""
    request = request_with(strict=True, tool_choice=choice)
    await chat.render_chat_request(request)
    assert request.to_sampling_params(16, {}).structured_outputs is not None


@pytest.mark.parametrize("strict", [True, None])
async def test_a_format_of_the_request_stays(chat: Any, strict: bool | None) -> None:
    """The gateway records it as the constraint `json_schema`, also if vLLM joins it with the grammar of calls."""
    request = request_with(strict=strict, response_format=SCHEMA)
    await chat.render_chat_request(request)
    assert request.to_sampling_params(16, {}).structured_outputs is not None
