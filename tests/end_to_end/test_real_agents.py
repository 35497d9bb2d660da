"""Agents that no one here wrote, unmodified, work through a real gateway; what arrives labelled is complete."""

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
from tool_using_model import ToolUsingModel
from waiting import PATIENCE_S, until

from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.topics.consumer import EventConsumer

AGENTS = Path(__file__).parents[1] / "agents"

pytest_plugins = ["node_project"]


@dataclass
class Workplace:
    """Where the agents work: a gateway over a stack that governs and labels, and the model behind it."""

    settings: Settings
    model: ToolUsingModel
    url: str


@pytest.fixture(scope="module")
def workplace(
    base_settings: Settings, with_topics: Callable[[Settings], Settings], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workplace]:
    model = ToolUsingModel()
    model.start()
    folder = tmp_path_factory.mktemp("agents")
    with Stack(
        with_topics(isolated(base_settings, folder / "stack")), ["broker", "registry", "govern", "label"]
    ) as stack:
        settings = gateway_settings(stack.settings, model)
        with gateway_process(settings, folder / "gateway.log"):
            yield Workplace(settings, model, f"http://127.0.0.1:{settings.gateway.port}")
    model.die()


@dataclass
class Way:
    """How an agent says whose its calls are."""

    name: str
    question: str
    environment: dict[str, str]


def way(workplace: Workplace, identity: str) -> Way:
    name = f"session-{uuid.uuid4().hex[:8]}"
    headers = {"x-stepstream-trajectory": name, "x-stepstream-task": "orders", "x-stepstream-agent": "front"}
    question = f"Please see to ticket {name}."
    environment = {
        "GATEWAY_URL": f"{workplace.url}/t/{name}/v1" if identity == "path" else f"{workplace.url}/v1",
        "GATEWAY_KEY": f"any-key:{name}" if identity == "key" else "any-key",
        "GATEWAY_HEADERS": json.dumps(headers if identity == "headers" else {}),
        "QUESTION": question,
    }
    return Way(name, question, environment)


def work(command: list[str | Path], made: Way, folder: Path | None = None, **more: str) -> None:
    """Runs the agent to its end."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment | made.environment | more,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is closed." in done.stdout, done.stdout + done.stderr


def steps_about(workplace: Workplace, question: str, count: int) -> list[dict[str, Any]]:
    """All steps of the trajectories in whose prompt the question stands, in order of their index."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        found[:] = []
        with EventConsumer(workplace.settings.kafka, opening_codec(workplace.settings)) as consumer:
            consumer.follow(["steps"])
            while not consumer.caught_up():
                found.extend(event.record for event in consumer.poll(1000, 0.1))
        asked = {step["trajectory_id"] for step in found if any(question in m["content"] for m in step["messages"])}
        found[:] = [step for step in found if step["trajectory_id"] in asked]
        return len(found) >= count

    until(there)
    return sorted(found, key=lambda step: step["step_index"])


def check_tokens(steps: list[dict[str, Any]], model: ToolUsingModel) -> None:
    """Whether each step holds exactly what the model was asked and gave, and stores only what is new."""
    whole: dict[int, list[int]] = {}
    for index, step in enumerate(steps):
        assert (step["step_index"], step["fidelity"], step["error"]) == (index, "token", None)
        given = model.given[step["response_logprobs"][0]]
        before = whole.get(index - 1 if step["prompt_shared_step"] is None else step["prompt_shared_step"], [])
        shared = before[: step["prompt_shared_tokens"]]
        assert shared + step["prompt_token_ids"] == given.prompt_ids
        assert step["response_token_ids"] == given.response_ids
        assert step["response_logprobs"] == [given.logprob] * len(given.response_ids)
        assert [span["version"] for span in step["policy_spans"]] == [model.version]
        counts = (len(given.prompt_ids), len(given.response_ids)) if given.counted else (None, None)
        assert (step["usage_prompt_tokens"], step["usage_response_tokens"]) == counts
        calls = [(one["id"], one["function"]["name"], one["function"]["arguments"]) for one in given.calls]
        told = step["response"]["tool_calls"]
        assert [(one["call_id"], one["name"], json.loads(one["arguments"])) for one in told] == [
            (call_id, name, json.loads(arguments)) for call_id, name, arguments in calls
        ]
        assert step["response"]["content"].strip() == given.content
        whole[index] = given.prompt_ids + given.response_ids


def check_appended(steps: list[dict[str, Any]]) -> None:
    """Whether each step goes on from the whole of the one before."""
    for step in steps[1:]:
        assert step["prompt_shared_step"] is None
        assert step["prompt_shared_tokens"] > 0
        assert {message["role"] for message in step["messages"]} == {"tool"}


def labelled(workplace: Workplace, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """The label of a trajectory that is told to have ended well."""
    trajectory_id = steps[0]["trajectory_id"]
    feedback = {
        "trajectory_id": trajectory_id,
        "name": "outcome",
        "value": True,
        "source": "environment",
        "ends_trajectory": "terminated",
        "last_step_index": len(steps) - 1,
    }
    httpx.post(f"{workplace.url}/v1/feedback", json=feedback, timeout=PATIENCE_S).raise_for_status()
    return dict(read_topic(workplace.settings, "labeled-trajectories", trajectory_id, 1)[-1])


def check_label(
    label: dict[str, Any],
    steps: list[dict[str, Any]],
    tools: list[list[str]],
    model: ToolUsingModel,
    sequences: int = 1,
) -> None:
    """Whether the label is complete: every step, tool and result, and the model's own tokens to train on."""
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
        given = model.given[steps[span["step_index"]]["response_logprobs"][0]]
        assert sequence["token_ids"][: span["end"]] == given.prompt_ids + given.response_ids
        assert (sequence["token_ids"][span["start"] : span["end"]], span["version"]) == (
            given.response_ids,
            model.version,
        )


ALONE = [["lookup", "lookup"], ["refund"], []]


def check_alone(workplace: Workplace, made: Way, *, named: bool = True) -> None:
    """Whether an agent's work without colleagues arrived whole: two tools at once, one more, and the answer."""
    steps = steps_about(workplace, made.question, 3)
    assert len(steps) == 3
    assert (steps[0]["trajectory_id"] == made.name) is named
    assert len({step["trajectory_id"] for step in steps}) == 1
    check_tokens(steps, workplace.model)
    check_appended(steps)
    check_label(labelled(workplace, steps), steps, ALONE, workplace.model)


@pytest.mark.parametrize(("mode", "identity"), [("whole", "headers"), ("streamed", "none")])
def test_langgraph(agents_python: Path, workplace: Workplace, mode: str, identity: str) -> None:
    made = way(workplace, identity)
    work([agents_python, AGENTS / "langgraph_agent.py", mode], made)
    check_alone(workplace, made, named=identity != "none")


@pytest.mark.parametrize(("api", "identity"), [("responses", "none"), ("streamed", "path"), ("chat", "headers")])
def test_openai_agents_sdk(agents_python: Path, workplace: Workplace, api: str, identity: str) -> None:
    made = way(workplace, identity)
    work([agents_python, AGENTS / "openai_agents_sdk.py", api, "alone"], made)
    check_alone(workplace, made, named=identity != "none")


@pytest.mark.parametrize(("mode", "identity"), [("whole", "headers"), ("streamed", "key")])
def test_anthropics_client(agents_python: Path, workplace: Workplace, mode: str, identity: str) -> None:
    made = way(workplace, identity)
    work([agents_python, AGENTS / "anthropic_client.py", mode], made)
    check_alone(workplace, made)


def test_crewai(agents_python: Path, workplace: Workplace, tmp_path: Path) -> None:
    made = way(workplace, "path")
    quiet = {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}
    work([agents_python, AGENTS / "crewai_crew.py"], made, tmp_path, HOME=str(tmp_path), **quiet)
    check_alone(workplace, made)


@pytest.mark.parametrize(
    ("api", "call", "identity"),
    [
        ("chat", "generateText", "none"),
        ("chat", "streamText", "path"),
        ("responses", "generateText", "headers"),
        ("responses", "streamText", "key"),
    ],
)
def test_vercels_ai_sdk(node_agents: Path, workplace: Workplace, api: str, call: str, identity: str) -> None:
    made = way(workplace, identity)
    work(["node", "agent.mjs", api, call], made, node_agents)
    check_alone(workplace, made, named=identity != "none")


def test_agents_without_any_name_at_the_same_time(node_agents: Path, workplace: Workplace) -> None:
    """They ask the very same; what their model answered tells them apart."""
    made = way(workplace, "none")
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(work, ["node", "agent.mjs", "chat", "generateText"], made, node_agents) for _ in range(2)]
    for one in done:
        one.result()
    steps = steps_about(workplace, made.question, 6)
    names = {step["trajectory_id"] for step in steps}
    assert (len(steps), len(names)) == (6, 2)
    for name in names:
        own = [step for step in steps if step["trajectory_id"] == name]
        check_tokens(own, workplace.model)
        check_appended(own)


def test_a_colleague_as_a_tool_is_a_child(agents_python: Path, workplace: Workplace) -> None:
    made = way(workplace, "headers")
    work([agents_python, AGENTS / "openai_agents_sdk.py", "responses", "delegating"], made)
    steps = steps_about(workplace, made.question, 3)
    assert [step["trajectory_id"] for step in steps] == [made.name] * 3
    check_tokens(steps, workplace.model)
    check_label(labelled(workplace, steps), steps, [["lookup", "lookup"], ["ask_refunds"], []], workplace.model)

    children = read_topic(workplace.settings, "steps", f"{made.name}/refunds", 2)
    assert {(step["parent_trajectory_id"], step["parent_step_index"]) for step in children} == {(made.name, 1)}
    check_tokens(children, workplace.model)
    check_appended(children)
    label = labelled(workplace, children)
    assert (label["parent_trajectory_id"], label["parent_step_index"]) == (made.name, 1)
    check_label(label, children, [["refund", "refund"], []], workplace.model)


def test_a_colleague_who_tells_nothing_is_a_branch(agents_python: Path, workplace: Workplace) -> None:
    """Its calls carry the session of the agent that asks it: a conversation of its own in the middle of the other."""
    made = way(workplace, "path")
    work([agents_python, AGENTS / "openai_agents_sdk.py", "responses", "nesting"], made)
    steps = steps_about(workplace, made.question, 5)
    assert [step["trajectory_id"] for step in steps] == [made.name] * 5
    check_tokens(steps, workplace.model)
    assert [step["prompt_shared_tokens"] > 0 for step in steps] == [False, True, False, True, True]
    assert [step["prompt_shared_step"] for step in steps] == [None, None, None, None, 1]
    tools = [["lookup", "lookup"], ["ask_refunds"], ["refund", "refund"], [], []]
    check_label(labelled(workplace, steps), steps, tools, workplace.model, sequences=2)


def test_a_hand_off_is_a_branch(agents_python: Path, workplace: Workplace) -> None:
    """The new agent's instructions come first: nothing is shared with the steps before, and nothing is lost."""
    made = way(workplace, "headers")
    work([agents_python, AGENTS / "openai_agents_sdk.py", "chat", "handing-off"], made)
    steps = steps_about(workplace, made.question, 4)
    assert [step["trajectory_id"] for step in steps] == [made.name] * 4
    check_tokens(steps, workplace.model)
    assert [step["prompt_shared_tokens"] > 0 for step in steps] == [False, True, False, True]
    tools = [["lookup", "lookup"], ["transfer_to_refunds"], ["refund", "refund"], []]
    check_label(labelled(workplace, steps), steps, tools, workplace.model, sequences=2)
