"""Read a harness from a JSON file, with errors that name the field at fault. Pure."""

from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stepstream.topics.events import new_harness_example, new_harness_tool, new_message, new_tool_call

MAX_BYTES = 1_000_000
"""Largest content as JSON. Kafka takes records of 1 MiB, and every call of the agent begins with the content."""


class InvalidHarness(ValueError):
    """The file holds no harness; the message names the field and the remedy."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _ToolCall(_Part):
    call_id: str
    name: str
    arguments: str
    result: str | None = None
    error: str | None = None
    duration_ms: float | None = None


class _Message(_Part):
    role: str
    content: str = ""
    tool_calls: list[_ToolCall] = []
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None


class _Example(_Part):
    messages: Annotated[list[_Message], Field(min_length=1)]
    trajectory_id: str | None = None


class _Tool(_Part):
    name: Annotated[str, Field(min_length=1)]
    version: str = ""
    description: str | None = None
    enabled: bool = True


class _Harness(_Part):
    instructions: str | None = None
    examples: list[_Example] = []
    examples_shown: Annotated[int, Field(ge=0)] = 0
    tools: list[_Tool] = []
    attempts: Annotated[int, Field(ge=1)] | None = None
    model: Annotated[str, Field(min_length=1)] | None = None
    parents: list[str] = []


def read_harness(text: bytes) -> dict[str, Any]:
    """Return the fields of a harness's content, and its parents.

    Raises:
        InvalidHarness: not JSON, an unknown or wrong field, two changes of one tool, or more than `MAX_BYTES`.
    """
    try:
        found = _Harness.model_validate(orjson.loads(text))
    except orjson.JSONDecodeError as error:
        raise InvalidHarness(f"not JSON: {error}") from None
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'the file'}: {fault['msg']}"
            for fault in error.errors(include_url=False)
        )
        raise InvalidHarness(f"{faults}; the fields are {', '.join(_Harness.model_fields)}") from None
    names = [tool.name for tool in found.tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidHarness(f"tools: {', '.join(twice)} twice: one change a tool")
    fields = found.model_dump()
    if (size := len(orjson.dumps(fields))) > MAX_BYTES:
        raise InvalidHarness(f"a harness has content of at most {MAX_BYTES} bytes; it has {size}: shorten the examples")
    fields["tools"] = [new_harness_tool(**tool) for tool in fields["tools"]]
    fields["examples"] = [
        new_harness_example(
            messages=[_message(message) for message in example["messages"]], trajectory_id=example["trajectory_id"]
        )
        for example in fields["examples"]
    ]
    return fields


def _message(fields: dict[str, Any]) -> Any:
    return new_message(**fields | {"tool_calls": [new_tool_call(**call) for call in fields["tool_calls"]]})
