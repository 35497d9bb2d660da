"""Send first events as the README describes, from Node and by curl, and run a third-party agent.

The agent uses the inference worker: its steps hold the sampled tokens.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_fixtures import read_topic
from loop_fixtures import loop_of
from required_tools import require_tool
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings, environment_of
from stepstream.embedded.stack import Stack
from stepstream.jobs.clickhouse.connection import connect
from stepstream.services.inference.chat_tokenizer import ChatTokenizer

README = Path(__file__).parents[2] / "README.md"
AGENT = Path(__file__).parents[1] / "agents" / "lookup_agents.py"
ATTEMPTS = 8
PROCESSES = (
    "broker",
    "registry",
    "store",
    "govern",
    "label",
    "measure",
    "store-writer",
    "worker",
    "gateway",
)

pytest_plugins = ["node_project"]


@pytest.fixture(scope="module")
def settings(
    base_model: Path,
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Settings]:
    loop = loop_of(base_model, base_settings, tmp_path_factory.mktemp("first"))
    with Stack(with_topics_and_tables(loop), PROCESSES) as stack:
        yield stack.settings


def row_of(settings: Settings, trajectory_id: str) -> dict[str, Any]:
    """Wait for the row of a labelled trajectory in ClickHouse; return it."""
    client = connect(settings)
    try:
        query = f"SELECT * FROM {settings.clickhouse.database}.trajectories FINAL WHERE trajectory_id = {{id:String}}"
        rows: list[dict[str, Any]] = []

        def has_row() -> bool:
            rows.extend(client.query(query, parameters={"id": trajectory_id}).named_results())
            return bool(rows)

        wait_until(has_row, f"a row of {trajectory_id}")
    finally:
        client.close()
    return dict(rows[0])


def commands(settings: Settings) -> list[str]:
    """Return the README's curl commands with this gateway's address."""
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "curl" in block]
    block = block.replace("http://127.0.0.1:8080", settings.fleet.gateway_url)
    return ["curl --fail --silent " + command for command in block.split("curl ")[1:]]


def test_first_events_are_labelled(settings: Settings, node_project: Path) -> None:
    done = subprocess.run(
        ["node", "publish.js"],
        cwd=node_project,
        env={**os.environ, **environment_of(settings)},
        capture_output=True,
        text=True,
        check=True,
    )
    trajectory_id = json.loads(done.stdout.splitlines()[0])["record"]["trajectory_id"]
    from_node = row_of(settings, trajectory_id)
    assert (from_node["steps"], from_node["success"], from_node["fidelity"]) == (3, True, "text")
    assert from_node["agent"] == "support-agent"

    require_tool("curl")
    for command in commands(settings):
        answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
        assert json.loads(answer.stdout)
    from_curl = row_of(settings, "my-first")
    assert (from_curl["steps"], from_curl["success"], from_curl["fidelity"]) == (1, True, "token")


def chat(message: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded message as the chat template takes it."""
    calls = [
        {
            "id": c["call_id"],
            "type": "function",
            "function": {"name": c["name"], "arguments": json.loads(c["arguments"])},
        }
        for c in message["tool_calls"]
    ]
    return {"role": message["role"], "content": message["content"]} | ({"tool_calls": calls} if calls else {})


def check_tokens(steps: list[dict[str, Any]], tokenizer: ChatTokenizer) -> list[int]:
    """Check that the steps' tokens encode their conversation; return all tokens."""
    tokens: list[int] = []
    messages: list[dict[str, Any]] = []
    for index, step in enumerate(steps):
        assert (step["step_index"], step["fidelity"], step["prompt_shared_step"]) == (index, "token", None)
        assert (step["prompt_shared_tokens"], step["prompt_shared_messages"]) == (len(tokens), len(messages))
        messages += [chat(message) for message in step["messages"]]
        tokens += step["prompt_token_ids"]
        assert tokens == tokenizer.prompt_ids(messages, [])
        assert len(step["response_logprobs"]) == len(step["response_token_ids"]) > 0
        assert all(logprob <= 0.0 for logprob in step["response_logprobs"])
        messages.append(chat(step["response"]))
        tokens += step["response_token_ids"]
    return tokens


def test_steps_hold_the_sampled_tokens(settings: Settings, base_model: Path, agents_python: Path) -> None:
    url = settings.fleet.gateway_url
    done = subprocess.run(
        [agents_python, AGENT, str(ATTEMPTS)],
        env={"PATH": os.environ["PATH"], "GATEWAY_URL": f"{url}/v1", "SESSION": "lookups"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tokenizer = ChatTokenizer(base_model)
    longest: list[dict[str, Any]] = []
    for number, count in enumerate(json.loads(done.stdout)):
        steps = read_topic(settings, "steps", f"lookups/{number}", count)
        assert len(steps) == count
        check_tokens(steps, tokenizer)
        longest = max(longest, steps, key=len)
    assert len(longest) >= 4  # at least two lookups, a sum and an answer
    assert {call["name"] for step in longest for call in step["response"]["tool_calls"]} == {"get", "calc"}

    outcome = {"trajectory_id": longest[0]["trajectory_id"], "name": "outcome", "value": True, "source": "environment"}
    ends = {"ends_trajectory": "terminated", "last_step_index": len(longest) - 1}
    httpx.post(f"{url}/v1/feedback", json=outcome | ends, timeout=TIMEOUT_S).raise_for_status()
    label = read_topic(settings, "labeled-trajectories", longest[0]["trajectory_id"], 1)[-1]
    assert (label["complete"], label["trainable"], label["fidelity"], len(label["steps"])) == (
        True,
        True,
        "token",
        len(longest),
    )
    (sequence,) = label["sequences"]
    assert sequence["token_ids"] == check_tokens(longest, tokenizer)
    assert sequence["logprobs"] == [logprob for step in longest for logprob in step["response_logprobs"]]
    assert all(call["result"] is not None for step in label["steps"][:-1] for call in step["tool_calls"])
