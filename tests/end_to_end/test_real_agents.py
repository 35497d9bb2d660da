"""Run unmodified third-party agents through a real gateway; check that their labels are complete."""

import json
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_fixtures import gateway_process, gateway_settings, opening_codec, read_topic
from log_reading import read_to_end
from tool_using_model import ToolUsingModel
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack

AGENTS = Path(__file__).parents[1] / "agents"

pytest_plugins = ["node_project"]


@dataclass
class AgentStack:
    """A gateway over a stack that governs and labels, and the model behind it."""

    settings: Settings
    model: ToolUsingModel
    url: str


@pytest.fixture(scope="module")
def agent_stack(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[AgentStack]:
    model = ToolUsingModel()
    model.start()
    folder = tmp_path_factory.mktemp("agents")
    with Stack(
        with_topics_and_tables(isolated(base_settings, folder / "stack")), ["broker", "registry", "govern", "label"]
    ) as stack:
        settings = gateway_settings(stack.settings, model)
        with gateway_process(settings, folder / "gateway.log"):
            yield AgentStack(settings, model, f"http://127.0.0.1:{settings.gateway.port}")
    model.die()


@dataclass
class Session:
    """One run of an agent, and the environment that identifies its calls."""

    name: str
    question: str
    environment: dict[str, str]


def new_session(agent_stack: AgentStack, identity: str) -> Session:
    name = f"session-{uuid.uuid4().hex[:8]}"
    headers = {"x-stepstream-trajectory": name, "x-stepstream-task": "orders", "x-stepstream-agent": "front"}
    question = f"Please see to ticket {name}."
    environment = {
        "GATEWAY_URL": f"{agent_stack.url}/t/{name}/v1" if identity == "path" else f"{agent_stack.url}/v1",
        "GATEWAY_KEY": f"any-key:{name}" if identity == "key" else "any-key",
        "GATEWAY_HEADERS": json.dumps(headers if identity == "headers" else {}),
        "QUESTION": question,
    }
    return Session(name, question, environment)


def run_agent(command: list[str | Path], session: Session, folder: Path | None = None, **more: str) -> None:
    """Run the agent to its end."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment | session.environment | more,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is closed." in done.stdout, done.stdout + done.stderr


def steps_about(agent_stack: AgentStack, question: str, count: int) -> list[dict[str, Any]]:
    """Wait for `count` steps of the trajectories with this question; return them by index."""
    found: list[dict[str, Any]] = []

    def has_all() -> bool:
        events = read_to_end(agent_stack.settings, opening_codec(agent_stack.settings), "steps")
        found[:] = [event.record for event in events]
        ids = {step["trajectory_id"] for step in found if any(question in m["content"] for m in step["messages"])}
        found[:] = [step for step in found if step["trajectory_id"] in ids]
        return len(found) >= count

    wait_until(has_all)
    return sorted(found, key=lambda step: step["step_index"])


def check_tokens(steps: list[dict[str, Any]], model: ToolUsingModel) -> None:
    """Check that each step holds exactly the model's prompt and response, and stores only what is new."""
    tokens_by_step: dict[int, list[int]] = {}
    for index, step in enumerate(steps):
        assert (step["step_index"], step["fidelity"], step["error"]) == (index, "token", None)
        given = model.answers[step["response_logprobs"][0]]
        before = tokens_by_step.get(index - 1 if step["prompt_shared_step"] is None else step["prompt_shared_step"], [])
        shared = before[: step["prompt_shared_tokens"]]
        assert shared + step["prompt_token_ids"] == given.prompt_ids
        assert step["response_token_ids"] == given.response_ids
        assert step["response_logprobs"] == [given.logprob] * len(given.response_ids)
        assert [span["version"] for span in step["policy_spans"]] == [model.version]
        counts = (len(given.prompt_ids), len(given.response_ids)) if given.counted else (None, None)
        assert (step["usage_prompt_tokens"], step["usage_response_tokens"]) == counts
        calls = [(one["id"], one["function"]["name"], one["function"]["arguments"]) for one in given.calls]
        recorded_calls = step["response"]["tool_calls"]
        assert [(one["call_id"], one["name"], json.loads(one["arguments"])) for one in recorded_calls] == [
            (call_id, name, json.loads(arguments)) for call_id, name, arguments in calls
        ]
        assert step["response"]["content"].strip() == given.content
        tokens_by_step[index] = given.prompt_ids + given.response_ids


def check_appended(steps: list[dict[str, Any]]) -> None:
    """Check that each step continues the complete step before it."""
    for step in steps[1:]:
        assert step["prompt_shared_step"] is None
        assert step["prompt_shared_tokens"] > 0
        assert {message["role"] for message in step["messages"]} == {"tool"}


def end_and_label(agent_stack: AgentStack, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """End a trajectory with success; return its label."""
    trajectory_id = steps[0]["trajectory_id"]
    feedback = {
        "trajectory_id": trajectory_id,
        "name": "outcome",
        "value": True,
        "source": "environment",
        "ends_trajectory": "terminated",
        "last_step_index": len(steps) - 1,
    }
    httpx.post(f"{agent_stack.url}/v1/feedback", json=feedback, timeout=TIMEOUT_S).raise_for_status()
    return dict(read_topic(agent_stack.settings, "labeled-trajectories", trajectory_id, 1)[-1])


def check_label(
    label: dict[str, Any],
    steps: list[dict[str, Any]],
    tools: list[list[str]],
    model: ToolUsingModel,
    sequences: int = 1,
) -> None:
    """Check that the label is complete: every step, tool and result, and the model's tokens to train on."""
    assert (label["complete"], label["success"], label["fidelity"], label["flags"]) == (True, True, "token", [])
    assert label["trainable"]
    assert [[call["name"] for call in step["tool_calls"]] for step in label["steps"]] == tools
    for step in label["steps"]:
        assert step["trainable"]
        for call in step["tool_calls"]:
            if call["name"] in ("lookup", "refund"):
                state = "late" if call["name"] == "lookup" else "refunded"
                assert call["result"] == f"Order {json.loads(call['arguments'])['order']} is {state}."
            else:
                assert call["result"]
    assert len(label["sequences"]) == sequences
    trained = [(sequence, span) for sequence in label["sequences"] for span in sequence["spans"]]
    assert sorted(span["step_index"] for _, span in trained) == list(range(len(steps)))
    for sequence, span in trained:
        given = model.answers[steps[span["step_index"]]["response_logprobs"][0]]
        assert sequence["token_ids"][: span["end"]] == given.prompt_ids + given.response_ids
        assert (sequence["token_ids"][span["start"] : span["end"]], span["version"]) == (
            given.response_ids,
            model.version,
        )


TOOLS_OF_ONE_AGENT = [["lookup", "lookup"], ["refund"], []]


def check_single_agent(agent_stack: AgentStack, session: Session, *, named: bool = True) -> None:
    """Check the steps and the label of a single agent: two tool calls at once, another one, and the answer."""
    steps = steps_about(agent_stack, session.question, 3)
    assert len(steps) == 3
    assert (steps[0]["trajectory_id"] == session.name) is named
    assert len({step["trajectory_id"] for step in steps}) == 1
    check_tokens(steps, agent_stack.model)
    check_appended(steps)
    check_label(end_and_label(agent_stack, steps), steps, TOOLS_OF_ONE_AGENT, agent_stack.model)


@pytest.mark.parametrize(("mode", "identity"), [("whole", "headers"), ("streamed", "none")])
def test_langgraph(agents_python: Path, agent_stack: AgentStack, mode: str, identity: str) -> None:
    session = new_session(agent_stack, identity)
    run_agent([agents_python, AGENTS / "langgraph_agent.py", mode], session)
    check_single_agent(agent_stack, session, named=identity != "none")


@pytest.mark.parametrize(("api", "identity"), [("responses", "none"), ("streamed", "path"), ("chat", "headers")])
def test_openai_agents_sdk(agents_python: Path, agent_stack: AgentStack, api: str, identity: str) -> None:
    session = new_session(agent_stack, identity)
    run_agent([agents_python, AGENTS / "openai_agents_sdk.py", api, "alone"], session)
    check_single_agent(agent_stack, session, named=identity != "none")


@pytest.mark.parametrize(("mode", "identity"), [("whole", "headers"), ("streamed", "key")])
def test_anthropics_client(agents_python: Path, agent_stack: AgentStack, mode: str, identity: str) -> None:
    session = new_session(agent_stack, identity)
    run_agent([agents_python, AGENTS / "anthropic_client.py", mode], session)
    check_single_agent(agent_stack, session)


def test_crewai(agents_python: Path, agent_stack: AgentStack, tmp_path: Path) -> None:
    session = new_session(agent_stack, "path")
    quiet = {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}
    run_agent([agents_python, AGENTS / "crewai_crew.py"], session, tmp_path, HOME=str(tmp_path), **quiet)
    check_single_agent(agent_stack, session)


@pytest.mark.parametrize(
    ("api", "call", "identity"),
    [
        ("chat", "generateText", "none"),
        ("chat", "streamText", "path"),
        ("responses", "generateText", "headers"),
        ("responses", "streamText", "key"),
    ],
)
def test_vercels_ai_sdk(node_agents: Path, agent_stack: AgentStack, api: str, call: str, identity: str) -> None:
    session = new_session(agent_stack, identity)
    run_agent(["node", "agent.mjs", api, call], session, node_agents)
    check_single_agent(agent_stack, session, named=identity != "none")


def test_concurrent_agents_without_an_id_get_separate_trajectories(node_agents: Path, agent_stack: AgentStack) -> None:
    """Both ask the same; only their model's replies distinguish them."""
    session = new_session(agent_stack, "none")
    with ThreadPoolExecutor(2) as pool:
        done = [
            pool.submit(run_agent, ["node", "agent.mjs", "chat", "generateText"], session, node_agents)
            for _ in range(2)
        ]
    for one in done:
        one.result()
    steps = steps_about(agent_stack, session.question, 6)
    names = {step["trajectory_id"] for step in steps}
    assert (len(steps), len(names)) == (6, 2)
    for name in names:
        own = [step for step in steps if step["trajectory_id"] == name]
        check_tokens(own, agent_stack.model)
        check_appended(own)


def test_an_agent_used_as_a_tool_is_a_child(agents_python: Path, agent_stack: AgentStack) -> None:
    session = new_session(agent_stack, "headers")
    run_agent([agents_python, AGENTS / "openai_agents_sdk.py", "responses", "delegating"], session)
    steps = steps_about(agent_stack, session.question, 3)
    assert [step["trajectory_id"] for step in steps] == [session.name] * 3
    check_tokens(steps, agent_stack.model)
    check_label(
        end_and_label(agent_stack, steps), steps, [["lookup", "lookup"], ["ask_refunds"], []], agent_stack.model
    )

    children = read_topic(agent_stack.settings, "steps", f"{session.name}/refunds", 2)
    assert {(step["parent_trajectory_id"], step["parent_step_index"]) for step in children} == {(session.name, 1)}
    check_tokens(children, agent_stack.model)
    check_appended(children)
    label = end_and_label(agent_stack, children)
    assert (label["parent_trajectory_id"], label["parent_step_index"]) == (session.name, 1)
    check_label(label, children, [["refund", "refund"], []], agent_stack.model)


def test_an_agent_used_as_a_tool_without_headers_is_a_branch(agents_python: Path, agent_stack: AgentStack) -> None:
    """Its calls carry the session of the calling agent: a separate conversation within that one."""
    session = new_session(agent_stack, "path")
    run_agent([agents_python, AGENTS / "openai_agents_sdk.py", "responses", "nesting"], session)
    steps = steps_about(agent_stack, session.question, 5)
    assert [step["trajectory_id"] for step in steps] == [session.name] * 5
    check_tokens(steps, agent_stack.model)
    assert [step["prompt_shared_tokens"] > 0 for step in steps] == [False, True, False, True, True]
    assert [step["prompt_shared_step"] for step in steps] == [None, None, None, None, 1]
    tools = [["lookup", "lookup"], ["ask_refunds"], ["refund", "refund"], [], []]
    check_label(end_and_label(agent_stack, steps), steps, tools, agent_stack.model, sequences=2)


def test_a_hand_off_is_a_branch(agents_python: Path, agent_stack: AgentStack) -> None:
    """The new agent's instructions come first: its steps share nothing with earlier ones, and none is lost."""
    session = new_session(agent_stack, "headers")
    run_agent([agents_python, AGENTS / "openai_agents_sdk.py", "chat", "handing-off"], session)
    steps = steps_about(agent_stack, session.question, 4)
    assert [step["trajectory_id"] for step in steps] == [session.name] * 4
    check_tokens(steps, agent_stack.model)
    assert [step["prompt_shared_tokens"] > 0 for step in steps] == [False, True, False, True]
    tools = [["lookup", "lookup"], ["transfer_to_refunds"], ["refund", "refund"], []]
    check_label(end_and_label(agent_stack, steps), steps, tools, agent_stack.model, sequences=2)
