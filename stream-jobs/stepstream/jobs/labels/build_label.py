"""Makes the label of a closed trajectory from what came for it. Pure: the same input gives the same bytes."""

from collections.abc import Collection, Iterable, Sequence

from stepstream.jobs.curation.quality import kept_out, quality
from stepstream.jobs.curation.signature import signature
from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicy
from stepstream.jobs.labels.conversations import converse
from stepstream.jobs.labels.demonstrations import demonstrated
from stepstream.jobs.labels.sequences import join_sequences
from stepstream.jobs.labels.tool_results import attach
from stepstream.jobs.rewards.counted_feedback import CountedFeedback
from stepstream.jobs.rewards.spec import Declared
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
from stepstream.topics.step_contexts import failed, shared_step

_CONSENT: tuple[Consent, ...] = ("none", "analyse", "train")
_FIDELITY: tuple[Fidelity, ...] = ("span", "text", "token")


def build_label(
    steps: Sequence[Step],
    evidence: CountedFeedback,
    demonstrations: Sequence[Feedback],
    *,
    declared: Declared,
    standing: TrajectoryPolicy,
    held: Sequence[str],
    released: bool,
    given_up: Collection[str],
    end: TrajectoryEnd,
    closed_by: str,
    last_step_index: int,
    event_id: str,
    occurred_at_us: int,
    revision: int,
    job: str,
) -> LabeledTrajectory:
    """The labelled trajectory.

    Args:
        steps: governed steps in order of their index, at least one.
        evidence: the feedback that counts for the reward.
        demonstrations: the feedback that demonstrates responses, but what was taken back.
        declared: the reward specification.
        standing: consent, and what the tenant's policy asks.
        held: reasons for which somebody decided to keep it out of training.
        released: whether somebody decided to let it in, whatever its quality.
        given_up: reward components that were waited for long enough.
        end: how the trajectory ended, as it was told.
        closed_by: what closed it: `end`, `idle` or `incomplete`.
        last_step_index: index of the last step, as far as known.
        event_id: identity of the result.
        occurred_at_us: time of the result: that of the newest of what it was made from.
        revision: number of the result.
        job: name and version of the job.
    """
    first = steps[0]
    spec = declared.spec
    complete = [step["step_index"] for step in steps] == list(range(last_step_index + 1))
    terms = components(spec, steps, evidence, complete=complete)
    rewards = [reward_of(step_terms) for step_terms in terms]
    returns = returns_to_go(rewards, spec.gamma)
    outcome = success(spec, terms)
    joined = join_sequences(steps)
    calls = attach(steps)
    persons = list(dict.fromkeys(step["user"] for step in steps if step["user"]))
    shown = demonstrated(steps, demonstrations, persons)
    given = [
        standing.consent,
        *(step["consent"] for step in steps),
        *(signal["consent"] for signal in evidence.signals),
    ]
    consent = min(given, key=_CONSENT.index)
    reasons = quality(steps, calls, end, standing.languages)
    holds = [*held, *(f"quality:{reason}" for reason in ([] if released else kept_out(reasons, standing.keep_out)))]
    missing = evidence.lacking(spec, [step["step_index"] for step in steps])
    pending = [name for name in missing if name not in given_up]
    flags = _flags(steps, joined.faults, standing.consent)
    if not complete:
        flags.append("incomplete")
    if spec.outcome is not None and outcome is None:
        flags.append("outcome:missing")
    flags += [f"{'waiting' if name in pending else 'missing'}:{name}" for name in missing]
    flags += [f"wrong_source:{name}" for name in evidence.disputed]
    flags += [f"unproven_source:{name}" for name in evidence.unproven]
    flags += [f"demonstration:{fault}" for fault in shown.faults]
    if first["split"] != "train":
        flags.append(f"split:{first['split']}")
    flags += [f"quality:{reason}" for reason in reasons] + [f"held:{reason}" for reason in holds]
    if released:
        flags.append("released")
    allowed = complete and consent == "train" and first["split"] == "train" and "outcome:missing" not in flags
    fidelity = _fidelity(steps, joined.text)
    said = converse(steps) if fidelity == "text" else []
    spoken = {span["step_index"] for conversation in said for span in conversation["spans"]}
    trainable = allowed and not holds and not pending and bool(joined.sequences or said)
    versions = [span["version"] for step in steps for span in step["policy_spans"]]
    costs = [step["cost_usd"] for step in steps if step["cost_usd"] is not None]
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
        user=persons[0] if persons else None,
        other_users=persons[1:],
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
        reward_spec_version=declared.version,
        gamma=spec.gamma,
        pending=pending,
        steps=[
            _labelled(
                step,
                rewards[place],
                returns[place],
                terms[place],
                calls[place] if consent != "none" else [],
                shown.of.get(step["step_index"]) if trainable else None,
                trainable and (joined.trainable[place] or step["step_index"] in spoken),
            )
            for place, step in enumerate(steps)
        ],
        sequences=joined.sequences if trainable else [],
        conversations=said if trainable else [],
        tools=_tools(calls),
        flags=flags,
        trainable=trainable,
        prompt_tokens=sum(len(step["prompt_token_ids"]) for step in steps),
        response_tokens=sum(len(step["response_token_ids"]) for step in steps),
        started_at_us=first["occurred_at_us"],
        ended_at_us=steps[-1]["occurred_at_us"],
        cost_usd=sum(costs) if costs else None,
        labelled_by=job,
        signature=signature(steps) if standing.signs and consent != "none" else [],
    )


def without_content(labelled: LabeledTrajectory) -> LabeledTrajectory:
    """What is left of a label when somebody in it was erased: that it was, without who and without what was said."""
    steps: list[LabeledStep] = [
        {
            **step,
            "tool_calls": [],
            "error": step["error"] and "erased",
            "demonstration": None,
            "demonstration_event_id": None,
            "trainable": False,
        }
        for step in labelled["steps"]
    ]
    return {
        **labelled,
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


def _labelled(
    step: Step,
    reward: float,
    return_to_go: float,
    terms: list[RewardComponent],
    calls: list[ToolCall],
    shown: Feedback | None,
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
        demonstration=shown and shown["demonstration"],
        demonstration_event_id=shown and shown["event_id"],
        trainable=trainable,
    )


def _fidelity(steps: Sequence[Step], text: Sequence[bool]) -> Fidelity:
    """The lowest of its responses. A call that failed had none: what ends in an error can be learned from.

    Args:
        steps: the steps, at least one.
        text: by step, whether it fell back to text when it was joined.
    """
    captured: list[Fidelity] = [
        min(step["fidelity"], "text", key=_FIDELITY.index) if fell else step["fidelity"]
        for step, fell in zip(steps, text, strict=True)
        if not failed(step)
    ]
    return min(captured or [step["fidelity"] for step in steps], key=_FIDELITY.index)


def _flags(steps: Iterable[Step], faults: Sequence[str], consent: Consent) -> list[str]:
    """Why parts are kept out of training: what `govern` said, what joining found and what is allowed now, sorted."""
    flags = set(faults)
    if consent != "train":
        flags.add(f"consent:{consent}")
    for step in steps:
        if step["governed"] is not None:
            flags.update(step["governed"]["flags"])
    return sorted(flags)


def _tools(calls: Iterable[Sequence[ToolCall]]) -> list[ToolUse]:
    uses: dict[str, ToolUse] = {}
    for made in calls:
        for call in made:
            use = uses.setdefault(call["name"], new_tool_use(name=call["name"], calls=0, errors=0))
            use["calls"] += 1
            use["errors"] += call["error"] is not None
            use["duration_ms"] += call["duration_ms"] or 0.0
    return [uses[name] for name in sorted(uses)]
