"""Read the verification file: which verifier reads which text, and the name of its feedback.

    [[verification]]
    name = "answer"                  # of the feedback; a reward specification refers to it
    verifier = "exact"
    environments = ["lookup"]        # patterns with * and ?; omitted: any
    reads = "final_response"         # | response | tool_arguments | tool_result
    extract = "answer: *(.*)"        # the part to verify: first group of the last match (RE2)
    expected = "answers.jsonl"       # lines with task_id and the expected values of the task
    options = { numbers = true }     # of the verifier

With `level = "step"`, `response` and the tools' texts are read at each step that has them, otherwise at the last one.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stepstream.config import SettingsError
from stepstream.jobs.redaction.tenant_patterns import InvalidPattern, compile_pattern
from stepstream.jobs.verifiers import registry
from stepstream.jobs.verifiers.base import Verifier
from stepstream.jobs.verifiers.options import InvalidOptions, VerifierContext
from stepstream.topics.trusted_sources import SHADOW_PREFIX


class VerificationConfig(BaseModel):
    """One `[[verification]]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    verifier: str = Field(min_length=1)
    environments: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    reads: Literal["final_response", "response", "tool_arguments", "tool_result"] = "final_response"
    level: Literal["trajectory", "step"] = "trajectory"
    tool: str = "*"
    pointer: str = Field("", pattern="^(/.*)?$")
    extract: str = ""
    expected: str = ""
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _consistent(self) -> "VerificationConfig":
        if self.name.startswith(SHADOW_PREFIX):
            raise ValueError(f"names that begin with {SHADOW_PREFIX} are reserved")
        if self.level == "step" and self.reads == "final_response":
            raise ValueError(f"'{self.name}': at level step read `response` or a tool's arguments or result")
        if self.pointer and not self.reads.startswith("tool_"):
            raise ValueError(f"'{self.name}': a pointer leads into a tool's arguments or result")
        if self.extract:
            try:
                groups: int = compile_pattern(self.extract).groups
            except InvalidPattern as error:
                raise ValueError(f"'{self.name}': extract: {error}") from None
            if groups != 1:
                raise ValueError(f"'{self.name}': extract needs one group in parentheses, not {groups}")
        return self

    def applies(self, agent: str, environment: str, task_id: str) -> bool:
        """Return True if it covers this agent, environment and task."""
        pairs = ((self.agents, agent), (self.environments, environment), (self.tasks, task_id))
        return all(not patterns or any(fnmatchcase(name, pattern) for pattern in patterns) for patterns, name in pairs)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    verification: tuple[VerificationConfig, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> "_File":
        names = [config.name for config in self.verification]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"declared twice: {', '.join(twice)}")
        return self


@dataclass(frozen=True)
class Verification:
    """Verification, ready for use."""

    config: VerificationConfig
    verifier: Verifier
    expected: Mapping[str, Mapping[str, Any]] | None
    """Expected values of each task, by task_id; None: none are needed."""


def load(file: Path, context: VerifierContext) -> Sequence[Verification]:
    """Read a verification file and the files that it names, and create its verifiers.

    Raises:
        SettingsError: something is missing or invalid; the message names it.
    """
    try:
        entries = _File.model_validate(tomllib.loads(file.read_text(encoding="utf-8"))).verification
    except OSError as error:
        raise SettingsError(f"verification file {file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"verification file {file} is not TOML: {error}") from None
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
        raise SettingsError(f"verification file {file}: {faults}") from None
    ready = []
    for entry in entries:
        try:
            verifier = registry.make(entry.verifier, entry.options, context)
            expected = expected_values(context.folder / entry.expected) if entry.expected else None
        except InvalidOptions as error:
            raise SettingsError(f"verification file {file}: '{entry.name}': {error}") from None
        if verifier.reads_trajectory and entry.level == "step":
            raise SettingsError(f"verification file {file}: '{entry.name}': {entry.verifier} reads whole trajectories")
        ready.append(Verification(entry, verifier, expected))
    return ready


def expected_values(file: Path) -> dict[str, dict[str, Any]]:
    """Read the expected values of each task from a JSONL file whose lines have a `task_id`.

    Raises:
        InvalidOptions: the file is unreadable or invalid; the message names the line.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise InvalidOptions(f"expected: {file} cannot be read: {error.strerror}") from None
    expected: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = orjson.loads(line)
            task = fields.pop("task_id")
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
            raise InvalidOptions(f"expected: {file}, line {number} is not a JSON object with a task_id") from None
        if not isinstance(task, str) or task in expected:
            raise InvalidOptions(f"expected: {file}, line {number}: task_id is no text, or is there twice")
        expected[task] = fields
    return expected
