"""Build the label of a closed trajectory. Pure: equal inputs give equal bytes."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from stepstream.jobs.curation.quality import kept_out, quality_flags
from stepstream.jobs.curation.signature import signature
from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicy
from stepstream.jobs.labels.conversations import build_conversations
from stepstream.jobs.labels.demonstrations import choose_demonstrations
from stepstream.jobs.labels.sequences import join_sequences
from stepstream.jobs.labels.tool_results import attach_tool_errors, attach_tool_results
from stepstream.jobs.rewards.counted_feedback import CountedFeedback
from stepstream.jobs.rewards.spec import VersionedSpec
from stepstream.jobs.rewards.terms import components, returns_to_go, reward_of, success
from stepstream.topics.events import (
    Consent,
    Feedback,
    Fidelity,
    LabeledStep,
    LabeledTrajectory,
    RewardComponent,
    Step,
    ToolCall,
    ToolUse,
    TrajectoryEnd,
    new_labeled_step,
    new_labeled_trajectory,
    new_tool_use,
)
from stepstream.topics.step_contexts import is_empty_failure, shared_step

_CONSENT: tuple[Consent, ...] = ("none", "analyse", "train")
REOPENED = "reopened"
"""Cause and flag of a label that is withdrawn until the next closure, because later steps have come."""
_FIDELITY: tuple[Fidelity, ...] = ("span", "text", "token")


def build_label(
    steps: Sequence[Step],
    counted: CountedFeedback,
    demonstrations: Sequence[Feedback],
    tool_errors: Mapping[str, str],
    *,
    versioned: VersionedSpec,
    policy: TrajectoryPolicy,
    hold_reasons: Sequence[str],
    released: bool,
    given_up: Collection[str],
    end: TrajectoryEnd,
    closed_by: str,
    last_step_index: int,
    event_id: str,
    occurred_at_us: int,
    revision: int,
    opened_at_us: int,
    job: str,
) -> LabeledTrajectory:
    """Build the labelled trajectory.

    Args:
        steps: governed steps in order of their index, at least one.
        counted: feedback that counts for the reward.
        demonstrations: feedback that demonstrates responses and was not retracted.
        tool_errors: error class by id of the tool call, as feedback reports it.
        versioned: the reward specification.
        policy: consent, and the quality rules of the tenant.
        hold_reasons: reasons of curation decisions that exclude it from training.
        released: True if a curation decision admits it at any quality.
        given_up: reward components for which the job no longer waits.
        end: how the trajectory ended.
        closed_by: `end`, `idle`, `ended`, `incomplete`, or `reopened` for an open trajectory, which is not complete.
        last_step_index: index of the last step, as far as known.
        event_id: identity of the label.
        occurred_at_us: time of the newest input.
        revision: number of the label.
        opened_at_us: time of the first step on the log; each revision has the same.
        job: name and version of the job.
    """
    first = steps[0]
    spec = versioned.spec
    is_open = closed_by == REOPENED
    complete = not is_open and [step["step_index"] for step in steps] == list(range(last_step_index + 1))
    terms = components(spec, steps, counted, complete=complete)
    rewards = [reward_of(step_terms) for step_terms in terms]
    returns = returns_to_go(rewards, spec.gamma)
    outcome = success(spec, terms)
    joined = join_sequences(steps)
    calls = attach_tool_results(steps)
    attach_tool_errors(calls, tool_errors)
    users = list(dict.fromkeys(step["user"] for step in steps if step["user"]))
    demonstrated = choose_demonstrations(steps, demonstrations, users)
    consents = [
        policy.consent,
        *(step["consent"] for step in steps),
        *(signal["consent"] for signal in counted.signals),
    ]
    consent = min(consents, key=_CONSENT.index)
    reasons = quality_flags(steps, calls, end, policy.languages)
    holds = [
        *hold_reasons,
        *(f"quality:{reason}" for reason in ([] if released else kept_out(reasons, policy.keep_out))),
    ]
    missing = counted.missing(spec, [step["step_index"] for step in steps])
    pending = [name for name in missing if name not in given_up]
    flags = _flags(steps, joined.faults, policy.consent)
    if not complete:
        flags.append(REOPENED if is_open else "incomplete")
    if spec.outcome is not None and outcome is None:
        flags.append("outcome:missing")
    flags += [f"{'waiting' if name in pending else 'missing'}:{name}" for name in missing]
    flags += [f"wrong_source:{name}" for name in counted.wrong_source]
    flags += [f"unproven_source:{name}" for name in counted.unproven_source]
    flags += [f"demonstration:{fault}" for fault in demonstrated.faults]
    if first["split"] != "train":
        flags.append(f"split:{first['split']}")
    flags += [f"quality:{reason}" for reason in reasons] + [f"held:{reason}" for reason in holds]
    if released:
        flags.append("released")
    allowed = complete and consent == "train" and first["split"] == "train" and "outcome:missing" not in flags
    fidelity = _fidelity(steps, joined.text)
    conversations = build_conversations(steps) if fidelity == "text" else []
    in_conversations = {span["step_index"] for conversation in conversations for span in conversation["spans"]}
    trainable = allowed and not holds and not pending and bool(joined.sequences or conversations)
    versions = [span["version"] for step in steps for span in step["policy_spans"]]
    return new_labeled_trajectory(
        event_id=event_id,
        occurred_at_us=occurred_at_us,
        trajectory_id=first["trajectory_id"],
        revision=revision,
        parent_trajectory_id=first["parent_trajectory_id"],
        parent_step_index=first["parent_step_index"],
        task_id=first["task_id"],
        group_id=first["group_id"],
        tenant=first["tenant"],
        user=users[0] if users else None,
        other_users=users[1:],
        consent=consent,
        agent=first["agent"],
        environment=first["environment"],
        harness_version=first["harness_version"],
        track=first["track"],
        split=first["split"],
        model=first["model"],
        version_min=min(versions, default=None),
        version_max=max(versions, default=None),
        fidelity=fidelity,
        end=end,
        closed_by=closed_by,
        complete=complete,
        success=outcome,
        reward=sum(rewards),
        reward_spec=spec.identity(),
        reward_spec_version=versioned.version,
        gamma=spec.gamma,
        pending=pending,
        steps=[
            _build_step(
                step,
                rewards[position],
                returns[position],
                terms[position],
                calls[position] if consent != "none" else [],
                demonstrated.by_step.get(step["step_index"]) if trainable else None,
                trainable and (joined.trainable[position] or step["step_index"] in in_conversations),
            )
            for position, step in enumerate(steps)
        ],
        sequences=joined.sequences if trainable else [],
        conversations=conversations if trainable else [],
        tools=_tool_uses(calls),
        flags=flags,
        trainable=trainable,
        prompt_tokens=sum(len(step["prompt_token_ids"]) for step in steps),
        response_tokens=sum(len(step["response_token_ids"]) for step in steps),
        opened_at_us=opened_at_us,
        started_at_us=first["occurred_at_us"],
        ended_at_us=steps[-1]["occurred_at_us"],
        cost_usd=_cost(steps),
        labelled_by=job,
        signature=signature(steps) if policy.signs and consent != "none" else [],
    )


def without_content(label: LabeledTrajectory) -> LabeledTrajectory:
    """Return the label of an erased trajectory: counts and rewards remain, users and content do not."""
    steps: list[LabeledStep] = [
        {
            **step,
            "tool_calls": [],
            "error": step["error"] and "erased",
            "demonstration": None,
            "demonstration_event_id": None,
            "trainable": False,
        }
        for step in label["steps"]
    ]
    return {
        **label,
        "user": None,
        "other_users": [],
        "consent": "none",
        "steps": steps,
        "sequences": [],
        "conversations": [],
        "signature": [],
        "pending": [],
        "flags": ["erased"],
        "trainable": False,
    }


def _build_step(
    step: Step,
    reward: float,
    return_to_go: float,
    terms: list[RewardComponent],
    calls: list[ToolCall],
    demonstrated: Feedback | None,
    trainable: bool,
) -> LabeledStep:
    versions = [span["version"] for span in step["policy_spans"]]
    return new_labeled_step(
        step_index=step["step_index"],
        event_id=step["event_id"],
        reward=reward,
        return_to_go=return_to_go,
        components=terms,
        version_min=min(versions, default=None),
        version_max=max(versions, default=None),
        response_tokens=len(step["response_token_ids"]),
        prompt_tokens=step["prompt_shared_tokens"] + len(step["prompt_token_ids"]),
        duration_ms=step["duration_ms"],
        error=step["error"],
        prompt_shared_step=shared_step(step),
        tool_calls=calls,
        demonstration=demonstrated and demonstrated["demonstration"],
        demonstration_event_id=demonstrated and demonstrated["event_id"],
        trainable=trainable,
    )


def _cost(steps: Iterable[Step]) -> float | None:
    """Return the cost of all calls in US dollars; None: that of some call is unknown.

    A failed call without content and counted tokens costs nothing.
    """
    costs = [0.0 if step["cost_usd"] is None and _is_free(step) else step["cost_usd"] for step in steps]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def _is_free(step: Step) -> bool:
    return is_empty_failure(step) and not (step["usage_prompt_tokens"] or step["usage_response_tokens"])


def _fidelity(steps: Sequence[Step], text: Sequence[bool]) -> Fidelity:
    """Return the lowest fidelity of the responses; calls that failed have no response and are ignored.

    Args:
        steps: the steps, at least one.
        text: by step, True if it fell back to text when its sequence was joined.
    """
    captured: list[Fidelity] = [
        min(step["fidelity"], "text", key=_FIDELITY.index) if fell else step["fidelity"]
        for step, fell in zip(steps, text, strict=True)
        if not is_empty_failure(step)
    ]
    return min(captured or [step["fidelity"] for step in steps], key=_FIDELITY.index)


def _flags(steps: Iterable[Step], faults: Sequence[str], consent: Consent) -> list[str]:
    """Return the reasons of `govern`, of joining and of consent that exclude parts from training, sorted."""
    flags = set(faults)
    if consent != "train":
        flags.add(f"consent:{consent}")
    for step in steps:
        if step["governed"] is not None:
            flags.update(step["governed"]["flags"])
    return sorted(flags)


def _tool_uses(calls: Iterable[Sequence[ToolCall]]) -> list[ToolUse]:
    uses: dict[str, ToolUse] = {}
    for made in calls:
        for call in made:
            use = uses.setdefault(call["name"], new_tool_use(name=call["name"], calls=0, errors=0))
            use["calls"] += 1
            use["errors"] += call["error"] is not None
            use["duration_ms"] += call["duration_ms"] or 0.0
    return [uses[name] for name in sorted(uses)]
