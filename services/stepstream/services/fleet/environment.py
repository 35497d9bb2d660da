"""Define a task environment: tasks drawn from a seed, tools, and a score for the final answer.

An `Environment` object is one attempt at one task. The agent's loop sends `first_message` to the model and runs the
model's tool calls through `call`. It passes the model's first reply without a tool call to `answer`, which ends the
attempt. Everything is a pure function of the task id, so an attempt can be scored again later.
"""

import importlib
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Split = Literal["train", "eval"]
Message = dict[str, Any]
"""One message of an OpenAI chat conversation."""


class UnknownTaskError(LookupError):
    """No task has this id."""


class UnknownEnvironmentError(LookupError):
    """The configured environment class cannot be loaded."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool's answer; `error`: the call was malformed or failed, which the text also states."""

    text: str
    error: bool = False


class Environment(ABC):
    """One attempt at one task.

    Class attributes: `name` (the first part of every task id), `tools` (OpenAI function tools, each with one
    string parameter `input`), `max_steps` (model replies after which an attempt is truncated).
    """

    name: ClassVar[str]
    tools: ClassVar[list[dict[str, Any]]]
    max_steps: ClassVar[int]

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id

    @classmethod
    @abstractmethod
    def tasks(cls, seed: int, split: Split) -> Iterator[str]:
        """Yield endless task ids, the same for the same seed; the splits have no task in common."""

    @property
    @abstractmethod
    def first_message(self) -> str:
        """The user's message that states the task."""

    @abstractmethod
    def call(self, tool: str, argument: str) -> ToolResult:
        """Run a tool; an unknown tool or a bad argument gives an answer with `error`, never an exception."""

    @abstractmethod
    def answer(self, text: str) -> float:
        """Score the final reply, in [0, 1]; 1 is success."""

    @abstractmethod
    def demonstration(self, rng: random.Random, noise: float) -> list[Message]:
        """Return a whole conversation by a scripted agent that makes each choice at random with probability `noise`."""


def function_tool(name: str, description: str, argument: str) -> dict[str, Any]:
    """Return an OpenAI function tool with one string parameter, `input`."""
    parameters = {
        "type": "object",
        "properties": {"input": {"type": "string", "description": argument}},
        "required": ["input"],
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def user(content: str) -> Message:
    """Return a user's message."""
    return {"role": "user", "content": content}


def reply(content: str) -> Message:
    """Return a final reply of the assistant."""
    return {"role": "assistant", "content": content}


def tool_round(tool: str, argument: str, result: ToolResult) -> list[Message]:
    """Return the assistant's call of one tool and the tool's answer."""
    call = {"id": "call_0", "type": "function", "function": {"name": tool, "arguments": {"input": argument}}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": result.text},
    ]


def load_environment(path: str) -> type[Environment]:
    """Return the class at `module:name`.

    Raises:
        UnknownEnvironmentError: the module or name does not exist, or is not an `Environment` class.
    """
    module, _, name = path.partition(":")
    try:
        loaded = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownEnvironmentError(
            f"environment '{path}' cannot be loaded ({error}); write it as module:name"
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, Environment)):
        raise UnknownEnvironmentError(f"'{path}' is not an Environment class: name a subclass of Environment")
    return loaded


def demonstrations(environment: type[Environment], seed: int, noise: float) -> Iterator[list[Message]]:
    """Yield endless whole conversations on training tasks by the scripted agent; the same for the same arguments.

    A warm start trains on them.
    """
    rng = random.Random(f"demonstrations/{seed}")
    for task_id in environment.tasks(seed, "train"):
        yield environment(task_id).demonstration(rng, noise)
