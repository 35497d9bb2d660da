"""Test agents with unmodified instrumentation packages: the gateway turns their spans into steps on Kafka."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_fixtures import gateway_process, gateway_settings
from order_model import order_model
from otlp_fixtures import children_of, steps_of
from scripted_upstream import ScriptedUpstream
from service_process import ServiceProcess
from stack_fixtures import with_settings
from waiting import TIMEOUT_S

from stepstream.config import Settings

AGENTS = Path(__file__).parents[1] / "agents"
CURRENT = {"OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental"}
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@pytest.fixture(scope="module")
def model_url() -> Iterator[str]:
    with order_model() as url:
        yield url


@pytest.fixture(scope="module")
def otlp_gateway(
    registry_settings: Settings, upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    """Start a gateway that waits only briefly for the rest of a trace."""
    settings = gateway_settings(registry_settings, upstream)
    settings = with_settings(settings, otlp={"grace_s": 0.5, "settle_s": 1.0})
    with gateway_process(settings, tmp_path_factory.mktemp("otlp") / "gateway.log") as process:
        yield process


def run(
    python: Path, command: list[str], gateway: ServiceProcess, model_url: str, environment: dict[str, str] | None = None
) -> str:
    """Run an agent to its end; return the id of its trace."""
    done = subprocess.run(
        [python, AGENTS / command[0], *command[1:]],
        env={
            "PATH": os.environ["PATH"],
            "OPENAI_API_KEY": "none",
            "OTEL_SERVICE_NAME": "order-agent",
            "OPENAI_BASE_URL": model_url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{gateway.settings.gateway.port}",
            **(environment or {}),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("instrumentation", "environment"),
    [
        pytest.param("openai_v2", {CONTENT: "true"}, id="openai-v2, content in log records"),
        pytest.param("openai_v2", {**CURRENT, CONTENT: "SPAN_ONLY", "OTEL_COMPRESSED": "1"}, id="openai-v2, current"),
        pytest.param("openllmetry", {}, id="OpenLLMetry"),
        pytest.param("openinference", {"OTEL_COMPRESSED": "1"}, id="OpenInference"),
        pytest.param("openinference responses stream", {}, id="OpenInference, Responses API"),
    ],
)
def test_the_steps_of_an_instrumented_agent_are_complete(
    instrumentation: str,
    environment: dict[str, str],
    agents_python: Path,
    otlp_gateway: ServiceProcess,
    model_url: str,
) -> None:
    trace_id = run(agents_python, ["otel_agent.py", *instrumentation.split()], otlp_gateway, model_url, environment)
    first, second, last = steps_of(otlp_gateway.settings, trace_id, 3)
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
        50,
    )


def test_tools_behind_mcp_are_tool_calls(agents_python: Path, otlp_gateway: ServiceProcess, model_url: str) -> None:
    """The package exports a tool's name and result but no call id; the server's process exports spans too."""
    trace_id = run(agents_python, ["otel_protocols.py", "mcp"], otlp_gateway, model_url)
    steps = steps_of(otlp_gateway.settings, trace_id, 3)
    calls = [call for step in steps for call in step["response"]["tool_calls"]]
    assert [(call["call_id"], call["name"], call["error"]) for call in calls] == [
        ("call_a", "lookup", None),
        ("call_b", "lookup", None),
        ("call_c", "refund", None),
    ]
    results = ["lookup of 4711: sent", "lookup of 4712: sent", "refund of 4712: done"]
    assert [json.loads(call["result"])["result"] for call in calls] == results
    assert all(call["duration_ms"] > 0 for call in calls)


def test_agents_behind_a2a_are_children(agents_python: Path, otlp_gateway: ServiceProcess, model_url: str) -> None:
    """The SDK exports a span for each method on both sides; each request still gives one child."""
    trace_id = run(agents_python, ["otel_protocols.py", "a2a"], otlp_gateway, model_url)
    children = children_of(otlp_gateway.settings, trace_id, 3)
    assert [(step["parent_trajectory_id"], step["parent_step_index"], step["step_index"]) for step in children] == [
        (trace_id, 0, 0),
        (trace_id, 0, 0),
        (trace_id, 1, 0),
    ]
    assert len({step["trajectory_id"] for step in children}) == 3
    assert {step["response"]["content"] for step in children} == {"4711 was sent; 4712 is refunded."}
    assert {(step["user"], step["end"]) for step in children} == {("maria", "terminated")}
    assert len(steps_of(otlp_gateway.settings, trace_id, 3)) == 3
