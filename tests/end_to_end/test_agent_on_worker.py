"""An agent that no one here wrote, on our own inference worker: its steps hold the very tokens that were sampled."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_fixtures import read_topic

from stepstream.config import Settings
from stepstream.embedded.stack import Stack
from stepstream.services.inference.chat import ChatTokenizer

AGENT = Path(__file__).parents[1] / "agents" / "lookup_agents.py"
ATTEMPTS = 8

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def settings(loop_settings: Settings) -> Iterator[Settings]:
    with Stack(loop_settings, ["broker", "registry", "govern", "label", "worker", "gateway"]) as stack:
        yield stack.settings


def chat(message: dict[str, Any]) -> dict[str, Any]:
    """A recorded message as the chat template takes it."""
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
    """Whether the steps' tokens are those of the conversation that they tell; all of them."""
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


def test_steps_hold_what_was_sampled(settings: Settings, base_model: Path, agents_python: Path) -> None:
    url = settings.fleet.gateway_url
    done = subprocess.run(
        [agents_python, AGENT, str(ATTEMPTS)],
        env={"PATH": os.environ["PATH"], "GATEWAY_URL": f"{url}/v1", "SESSION": "lookups"},
        capture_output=True,
        text=True,
        timeout=120,
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
    assert len(longest) >= 4  # two values, a sum, and an answer or more
    assert {call["name"] for step in longest for call in step["response"]["tool_calls"]} == {"get", "calc"}

    told = {"trajectory_id": longest[0]["trajectory_id"], "name": "outcome", "value": True, "source": "environment"}
    ends = {"ends_trajectory": "terminated", "last_step_index": len(longest) - 1}
    httpx.post(f"{url}/v1/feedback", json=told | ends).raise_for_status()
    label = read_topic(settings, "labeled-trajectories", longest[0]["trajectory_id"], 1, timeout_s=60.0)[-1]
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
