"""Define the episode that all formats convert to and from, and build one from a foreign document. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from stepstream.topics.events import (
    Consent,
    Feedback,
    Message,
    Step,
    TrajectoryEnd,
    new_feedback,
    new_policy_span,
    new_sampling,
    new_step,
)
from stepstream.topics.ids import derived_id, token_digest

REWARD = "reward"
"""Name of feedback that holds a step's reward in a foreign document."""
OUTCOME = "outcome"
"""Name of feedback that holds success, as in the built-in reward specification."""


class InvalidDocument(Exception):
    """A document that violates its format, or lacks a required field of steps."""


@dataclass
class Episode:
    """The steps of one trajectory, by index, at least one, and the feedback about it."""

    steps: list[Step]
    feedback: list[Feedback] = field(default_factory=list)
    rewards: dict[int, float] = field(default_factory=dict)
    """Labelled reward by step index, where known. An import does not publish it."""
    omitted: set[str] = field(default_factory=set, compare=False)
    """Names of the source document's content that steps and feedback have no field for."""

    has_extension: bool = field(default=False, compare=False)
    """True if the source document has Stepstream's extension, with the original ids."""

    @property
    def trajectory_id(self) -> str:
        """Id of the trajectory."""
        return self.steps[0]["trajectory_id"]


@dataclass(frozen=True)
class Origin:
    """Values for fields that a foreign document lacks."""

    dataset: str
    """Prefix of the file's ids, which are unique only in the file; empty: no prefix."""
    at_us: int
    """Time of steps without one, in microseconds since the Unix epoch."""
    consent: Consent | None = None
    """Consent of the records; None: the document must state it."""
    tenant: str = "default"
    agent: str = "imported"
    environment: str = ""
    version: int | None = None
    """Policy version that sampled the token ids; None: unknown, and token ids are omitted."""
    outcome: float | None = None
    """Outcome of documents without one: 1 success, 0 failure; None: unknown."""


NEUTRAL = Origin(dataset="", at_us=0, consent="none", agent="", version=0)
"""Origin for documents with an extension, before it is applied. Part of the extension's format."""


@dataclass
class Turn:
    """One model call of a foreign document."""

    messages: list[Message]
    """New messages of the prompt."""
    response: Message
    at_us: int | None = None
    model: str = ""
    agent: str | None = None
    prompt_ids: list[int] | None = None
    """Token ids of the whole prompt."""
    response_ids: list[int] | None = None
    logprobs: list[float] | None = None
    reward: float | None = None
    cost_usd: float | None = None
    prompt_tokens: int | None = None
    response_tokens: int | None = None


@dataclass(frozen=True)
class DocumentName:
    """Format and name of a document; ids derive from both."""

    format: str
    name: str

    def trajectory_id(self, origin: Origin) -> str:
        """Return the trajectory's id."""
        return f"{origin.dataset}/{self.name}" if origin.dataset else self.name

    def event_id(self, origin: Origin, *parts: str | int) -> str:
        """Return the id of an event; the same file gives the same id."""
        return derived_id(f"import/{self.format}@1", self.trajectory_id(origin), *parts)


def build_episode(
    turns: Sequence[Turn],
    document: DocumentName,
    origin: Origin,
    *,
    end: TrajectoryEnd = "terminated",
    omitted: set[str] | None = None,
    outcome: tuple[float, str | None] | None = None,
    **fields: Any,
) -> Episode:
    """Build an episode from turns of an append-only context.

    Args:
        turns: the model calls, in order.
        document: name of the document.
        origin: values that it lacks.
        end: end of the trajectory.
        omitted: names of content that the reader omitted; this function may add to it.
        outcome: value and category of the outcome, if the document has one.
        fields: fields of every step, e.g. `group_id`.

    Raises:
        InvalidDocument: there are no turns, or no consent.
    """
    if not turns:
        raise InvalidDocument("the document contains no response of an agent")
    if origin.consent is None:
        raise InvalidDocument("the document states no consent: give --consent")
    omitted = omitted if omitted is not None else set()
    steps: list[Step] = []
    context: list[int] | None = []
    messages = 0
    for index, turn in enumerate(turns):
        values: dict[str, Any] = {
            "event_id": document.event_id(origin, "step", index),
            "occurred_at_us": origin.at_us if turn.at_us is None else turn.at_us,
            "producer": f"import/{document.format}",
            "tenant": origin.tenant,
            "consent": origin.consent,
            "trajectory_id": document.trajectory_id(origin),
            "step_index": index,
            "agent": origin.agent if turn.agent is None else turn.agent,
            "environment": origin.environment,
            "model": turn.model,
            "fidelity": "text",
            "prompt_shared_messages": messages,
            "messages": turn.messages,
            "response": turn.response,
            "sampling": new_sampling(),
            "finish_reason": "tool_calls" if turn.response["tool_calls"] else "stop",
            "cost_usd": turn.cost_usd,
            "usage_prompt_tokens": turn.prompt_tokens,
            "usage_response_tokens": turn.response_tokens,
            "end": end if index == len(turns) - 1 else "open",
        }
        tokens, context = _token_fields(turn, context, origin.version, omitted)
        steps.append(new_step(**(values | tokens | fields)))
        messages += len(turn.messages) + 1
    rewards = {index: turn.reward for index, turn in enumerate(turns) if turn.reward is not None}
    feedback = [
        _step_feedback(steps[index], document.event_id(origin, REWARD, index), REWARD, value)
        for index, value in rewards.items()
    ]
    if outcome is None and origin.outcome is not None:
        outcome = origin.outcome, None
    if outcome is not None:
        value, category = outcome
        verdict = _step_feedback(steps[-1], document.event_id(origin, OUTCOME), OUTCOME, value)
        feedback.append({**verdict, "step_index": None, "source": "user", "category": category})
    return Episode(steps, feedback, rewards, omitted)


def _token_fields(
    turn: Turn, context: list[int] | None, version: int | None, omitted: set[str]
) -> tuple[dict[str, Any], list[int] | None]:
    """Return the step's token fields, empty if tokens are incomplete, and the context after it (None: unknown)."""
    prompt, response, logprobs = turn.prompt_ids, turn.response_ids, turn.logprobs
    if prompt is None or response is None or logprobs is None or len(response) != len(logprobs) or not response:
        if response:
            omitted.add("token ids without the prompt's ids or one logprob for each")
        return {}, None
    if version is None:
        omitted.add("token ids and logprobs, since the policy version that sampled them is not known")
        return {}, None
    shared = 0
    if context:
        differences = (i for i, (a, b) in enumerate(zip(context, prompt, strict=False)) if a != b)
        shared = min(next(differences, len(context)), len(prompt))
    fields = {
        "fidelity": "token",
        "prompt_shared_tokens": shared,
        "prompt_shared_digest": token_digest(prompt[:shared]) if shared else None,
        "prompt_token_ids": prompt[shared:],
        "response_token_ids": response,
        "response_logprobs": logprobs,
        "policy_spans": [new_policy_span(start=0, end=len(response), model=turn.model, version=version)],
    }
    return fields, [*prompt, *response]


def _step_feedback(step: Step, event_id: str, name: str, value: float) -> Feedback:
    return new_feedback(
        event_id=event_id,
        occurred_at_us=step["occurred_at_us"],
        producer=step["producer"],
        tenant=step["tenant"],
        consent=step["consent"],
        trajectory_id=step["trajectory_id"],
        step_index=step["step_index"],
        name=name,
        value=value,
        source="environment",
    )


def attach_last_results(last: Turn, messages: list[Message], omitted: set[str]) -> None:
    """Move tool results after the last response to its calls; other messages there are omitted."""
    calls = {call["call_id"]: call for call in last.response["tool_calls"]}
    for message in messages:
        call = calls.get(message["tool_call_id"] or "")
        if message["role"] == "tool" and call is not None and call["result"] is None:
            call["result"] = message["content"]
        else:
            omitted.add("messages after the last answer")


def ungoverned_step(step: Step) -> Step:
    """Return a governed step as its producer could have sent it, with the id of its source event.

    So importing it at its origin is the same event again.
    """
    return cast(Step, _ungoverned(step))


def ungoverned_feedback(feedback: Feedback) -> Feedback:
    """Return governed feedback as its producer could have sent it."""
    return cast(Feedback, _ungoverned(feedback))


def _ungoverned(record: Step | Feedback) -> Any:
    governed = record["governed"]
    if governed is None:
        return record
    return {**record, "event_id": governed["source_event_id"], "governed": None}


def merge(parts: Sequence[Episode]) -> Episode:
    """Merge the episodes that a format split a trajectory into; steps and feedback are unique by id."""
    steps = {step["event_id"]: step for part in parts for step in part.steps}
    feedback = {item["event_id"]: item for part in parts for item in part.feedback}
    rewards = {index: value for part in parts for index, value in part.rewards.items()}
    ordered = sorted(steps.values(), key=lambda step: step["step_index"])
    return Episode(ordered, list(feedback.values()), dict(sorted(rewards.items())))
