"""One trajectory as the log keeps it, between any two formats; and how it is made of what other formats tell. Pure."""

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
"""Name of the feedback that a foreign file's reward of a step becomes."""
OUTCOME = "outcome"
"""Name of the feedback that tells success, by the built-in reward specification."""


class Unreadable(Exception):
    """A document that is not what its format promises, or that lacks what a record must say."""


@dataclass
class Episode:
    """The steps of one trajectory in order of their index, at least one, and the feedback about it."""

    steps: list[Step]
    feedback: list[Feedback] = field(default_factory=list)
    rewards: dict[int, float] = field(default_factory=dict)
    """Labelled reward by step index, where known: what is told of it, not what is published."""
    lost: set[str] = field(default_factory=set, compare=False)
    """What the document that it was read from had and a record has no place for."""

    ours: bool = field(default=False, compare=False)
    """Whether an extension of ours told it, ids and all."""

    @property
    def trajectory_id(self) -> str:
        """The trajectory."""
        return self.steps[0]["trajectory_id"]


@dataclass(frozen=True)
class Origin:
    """What a file of another format does not tell about its trajectories."""

    dataset: str
    """Put before the ids of a file, which are unique in it alone; empty: the ids are taken as they are."""
    at_us: int
    """Time of steps that tell none, in microseconds since the Unix epoch."""
    consent: Consent | None = None
    """What may be done with them; None: the file must say."""
    tenant: str = "default"
    agent: str = "imported"
    environment: str = ""
    version: int | None = None
    """Policy version behind token ids and logprobs; None: not known, and they are left out."""
    outcome: float | None = None
    """Outcome of trajectories whose document tells none: 1 success, 0 failure; None: not known."""


NEUTRAL = Origin(dataset="", at_us=0, consent="none", agent="", version=0)
"""What our own documents are read with before their extension is applied; part of the extension's format."""


@dataclass
class Turn:
    """One call of the model, as a foreign document tells it."""

    messages: list[Message]
    """New messages of the prompt."""
    response: Message
    at_us: int | None = None
    model: str = ""
    agent: str | None = None
    prompt_ids: list[int] | None = None
    """Of the whole prompt."""
    response_ids: list[int] | None = None
    logprobs: list[float] | None = None
    reward: float | None = None
    cost_usd: float | None = None
    prompt_tokens: int | None = None
    response_tokens: int | None = None


@dataclass(frozen=True)
class Named:
    """What a document is called, and in which format it came: ids are derived from both."""

    format: str
    name: str

    def trajectory_id(self, origin: Origin) -> str:
        """The trajectory's id."""
        return f"{origin.dataset}/{self.name}" if origin.dataset else self.name

    def event_id(self, origin: Origin, *what: str | int) -> str:
        """The id of an event of it: the same file read again gives the same one."""
        return derived_id(f"import/{self.format}@1", self.trajectory_id(origin), *what)


def build(
    turns: Sequence[Turn],
    named: Named,
    origin: Origin,
    *,
    end: TrajectoryEnd = "terminated",
    lost: set[str] | None = None,
    outcome: tuple[float, str | None] | None = None,
    **fields: Any,
) -> Episode:
    """An episode of turns whose contexts only grow.

    Args:
        turns: the calls, in order.
        named: the document.
        origin: what it does not tell.
        end: how it ended.
        lost: what could not be taken.
        outcome: how well it went, and the word for it, where the document tells.
        fields: fields of every step, as `group_id`.

    Raises:
        Unreadable: it has no turns, or nobody said what may be done with it.
    """
    if not turns:
        raise Unreadable("it holds no answer of an agent")
    if origin.consent is None:
        raise Unreadable("it does not say what may be done with it: give --consent")
    trajectory_id, told = named.trajectory_id(origin), lost if lost is not None else set()
    steps: list[Step] = []
    known: list[int] | None = []
    messages = 0
    for index, turn in enumerate(turns):
        values: dict[str, Any] = {
            "event_id": named.event_id(origin, "step", index),
            "occurred_at_us": origin.at_us if turn.at_us is None else turn.at_us,
            "producer": f"import/{named.format}",
            "tenant": origin.tenant,
            "consent": origin.consent,
            "trajectory_id": trajectory_id,
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
        tokens, known = _tokens(turn, known, origin.version, told)
        steps.append(new_step(**(values | tokens | fields)))
        messages += len(turn.messages) + 1
    rewards = {index: turn.reward for index, turn in enumerate(turns) if turn.reward is not None}
    feedback = [
        feedback_of(steps[index], named.event_id(origin, REWARD, index), value) for index, value in rewards.items()
    ]
    if outcome is None and origin.outcome is not None:
        outcome = origin.outcome, None
    if outcome is not None:
        value, category = outcome
        verdict = feedback_of(steps[-1], named.event_id(origin, OUTCOME), value, OUTCOME)
        feedback.append({**verdict, "step_index": None, "source": "user", "category": category})
    return Episode(steps, feedback, rewards, told)


def feedback_of(step: Step, event_id: str, value: float, name: str = REWARD) -> Feedback:
    """Feedback about one step of a foreign document."""
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


def _tokens(
    turn: Turn, before: list[int] | None, version: int | None, lost: set[str]
) -> tuple[dict[str, Any], list[int] | None]:
    """A step's fields of its tokens, where they can be trusted, and the whole context after it (None: not known)."""
    prompt, response, logprobs = turn.prompt_ids, turn.response_ids, turn.logprobs
    if prompt is None or response is None or logprobs is None or len(response) != len(logprobs) or not response:
        if response:
            lost.add("token ids without the prompt's ids or one logprob for each")
        return {}, None
    if version is None:
        lost.add("token ids and logprobs, since the policy version that sampled them is not known")
        return {}, None
    shared = 0
    if before:
        shared = next((i for i, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), len(before))
        shared = min(shared, len(prompt))
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


def as_told(step: Step) -> Step:
    """A governed step as its producer could have told it: what a file may bring back in.

    It keeps the id of its source, so that bringing it back is the same event again.
    """
    return cast(Step, _ungoverned(step))


def feedback_as_told(feedback: Feedback) -> Feedback:
    """Governed feedback as its producer could have told it."""
    return cast(Feedback, _ungoverned(feedback))


def _ungoverned(record: Step | Feedback) -> Any:
    governed = record["governed"]
    if governed is None:
        return record
    return {**record, "event_id": governed["source_event_id"], "governed": None}


def merged(parts: Sequence[Episode]) -> Episode:
    """One episode of the parts that a format cut it into: steps and feedback by id, each once."""
    steps = {step["event_id"]: step for part in parts for step in part.steps}
    feedback = {item["event_id"]: item for part in parts for item in part.feedback}
    rewards = {index: value for part in parts for index, value in part.rewards.items()}
    ordered = sorted(steps.values(), key=lambda step: step["step_index"])
    return Episode(ordered, list(feedback.values()), dict(sorted(rewards.items())))
