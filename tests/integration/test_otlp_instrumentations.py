"""Agents under real, unmodified instrumentation packages export to a real gateway; their steps arrive on Kafka."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from gateway_fixtures import gateway_process, gateway_settings
from otlp_fixtures import steps_of
from scripted_upstream import ScriptedUpstream
from service_process import ServiceProcess
from stack_fixtures import changed

from stepstream.config import Settings

AGENT = Path(__file__).parents[1] / "agents" / "otel_agent.py"
CURRENT = {"OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental"}
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


class OrderModel(BaseHTTPRequestHandler):
    """A chat model that looks two orders up, refunds one, and answers."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        results = sum(message["role"] == "tool" for message in request["messages"])
        asked = {0: [("call_a", "lookup", 4711), ("call_b", "lookup", 4712)], 2: [("call_c", "refund", 4712)]}
        calls = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps({"order": order})}}
            for call_id, name, order in asked.get(results, [])
        ]
        said = "Let me refund." if results == 2 else "4711 was sent; 4712 is refunded."
        message = {"role": "assistant", "content": said if results else None} | ({"tool_calls": calls} if calls else {})
        reply = {
            "id": f"chatcmpl-{results}",
            "object": "chat.completion",
            "created": 1,
            "model": "demo-2026",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
            "usage": {"prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32},
        }
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def model_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), OrderModel) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def otlp_gateway(
    registry_settings: Settings, upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    """A gateway that waits only briefly for the rest of a trace."""
    settings = gateway_settings(registry_settings, upstream)
    settings = changed(settings, otlp={"grace_s": 0.5, "settle_s": 1.0})
    with gateway_process(settings, tmp_path_factory.mktemp("otlp") / "gateway.log") as process:
        yield process


@pytest.mark.parametrize(
    ("instrumentation", "environment"),
    [
        pytest.param("openai_v2", {CONTENT: "true"}, id="openai-v2, content in log records"),
        pytest.param("openai_v2", {**CURRENT, CONTENT: "SPAN_ONLY", "OTEL_COMPRESSED": "1"}, id="openai-v2, current"),
        pytest.param("openllmetry", {}, id="OpenLLMetry"),
        pytest.param("openinference", {"OTEL_COMPRESSED": "1"}, id="OpenInference"),
    ],
)
def test_an_instrumented_agent_arrives_whole(
    instrumentation: str,
    environment: dict[str, str],
    agents_python: Path,
    otlp_gateway: ServiceProcess,
    model_url: str,
) -> None:
    url = f"http://127.0.0.1:{otlp_gateway.settings.gateway.port}"
    run = subprocess.run(
        [agents_python, AGENT, instrumentation],
        env={
            "PATH": os.environ["PATH"],
            "OPENAI_API_KEY": "none",
            "OTEL_SERVICE_NAME": "order-agent",
            "OPENAI_BASE_URL": model_url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    first, second, last = steps_of(otlp_gateway.settings, run.stdout.strip(), 3)
    assert [step["step_index"] for step in (first, second, last)] == [0, 1, 2]
    assert [(m["role"], m["content"]) for m in first["messages"]] == [
        ("system", "Help with orders."),
        ("user", "Where are 4711 and 4712?"),
    ]
    assert [c["call_id"] for c in first["response"]["tool_calls"]] == ["call_a", "call_b"]
    assert all(c["result"].startswith("lookup of") for c in first["response"]["tool_calls"])
    assert (second["prompt_shared_messages"], len(second["messages"])) == (3, 2)
    assert last["response"]["content"] == "4711 was sent; 4712 is refunded."
    assert (last["end"], last["agent"], last["user"], last["usage_prompt_tokens"]) == (
        "terminated",
        "order-agent",
        "maria",
        20,
    )
