"""Build one record of each topic that the sink writes to a table."""

from typing import Any

from stepstream.topics import events

SECOND_US = 1_000_000
T0_US = 1_760_000_000 * SECOND_US


def step(trajectory_id: str = "t", index: int = 0, at_us: int = T0_US, **fields: Any) -> events.Step:
    """Return a step whose response calls a tool, sampled by versions 3 and 4."""
    values: dict[str, Any] = {
        "event_id": f"{trajectory_id}-{index}",
        "occurred_at_us": at_us,
        "producer": "test",
        "consent": "train",
        "trajectory_id": trajectory_id,
        "step_index": index,
        "agent": "a",
        "model": "demo",
        "fidelity": "token",
        "messages": [events.new_message(role="user", content="é\U0001f600\x00")],
        "prompt_token_ids": [1, 2, 3],
        "response": events.new_message(
            role="assistant", tool_calls=[events.new_tool_call(call_id="1", name="get", arguments="{}")]
        ),
        "response_token_ids": [4, 5],
        "response_logprobs": [-0.5, -0.25],
        "policy_spans": [
            events.new_policy_span(start=0, end=1, model="demo", version=3),
            events.new_policy_span(start=1, end=2, model="demo", version=4),
        ],
        "sampling": events.new_sampling(),
    }
    return events.new_step(**(values | fields))


def feedback(event_id: str = "f", **fields: Any) -> events.Feedback:
    """Return an outcome of 1."""
    values: dict[str, Any] = {
        "event_id": event_id,
        "occurred_at_us": T0_US,
        "producer": "test",
        "consent": "train",
        "trajectory_id": "t",
        "name": "outcome",
        "value": 1.0,
        "source": "environment",
    }
    return events.new_feedback(**(values | fields))


def trajectory(
    trajectory_id: str = "t", *, revision: int = 1, version: int = 1, **fields: Any
) -> events.LabeledTrajectory:
    """Return a labelled trajectory of one second, with one step of two reward components."""
    components = [
        events.new_reward_component(name="outcome", value=1.0, weight=1.0, source="environment"),
        events.new_reward_component(name="length", value=0.5, weight=-0.5, source="step"),
    ]
    values: dict[str, Any] = {
        "event_id": f"{trajectory_id}/{revision}",
        "occurred_at_us": T0_US,
        "trajectory_id": trajectory_id,
        "revision": revision,
        "consent": "train",
        "agent": "a",
        "model": "demo",
        "fidelity": "token",
        "closed_by": "end",
        "complete": True,
        "reward": 0.75,
        "reward_spec": "outcome",
        "started_at_us": T0_US,
        "ended_at_us": T0_US + SECOND_US,
        "labelled_by": "label@1",
        "version_min": version,
        "version_max": version,
        "steps": [
            events.new_labeled_step(step_index=0, event_id="s", reward=0.75, return_to_go=0.75, components=components)
        ],
        "tools": [
            events.new_tool_use(name="get", calls=2, errors=1),
            events.new_tool_use(name="calc", calls=1, errors=0),
        ],
    }
    return events.new_labeled_trajectory(**(values | fields))


def checkpoint(version: int = 1, at_us: int = T0_US, **fields: Any) -> events.Checkpoint:
    """Return a version trained on two trajectories."""
    values: dict[str, Any] = {
        "event_id": f"c{version}",
        "occurred_at_us": at_us,
        "model": "demo",
        "version": version,
        "uri": "file:///x",
        "weights_sha256": "ab",
        "code_version": "0",
        "files": [events.new_checkpoint_file(path="model.safetensors", sha256="ab", size_bytes=10)],
        "inputs": [events.new_update_input(update=1, partitions=[0, 0], offsets=[1, 2])],
        "metrics": {"loss": 0.5},
    }
    return events.new_checkpoint(**(values | fields))


def worker_status(event_id: str = "w", at_us: int = T0_US, **fields: Any) -> events.WorkerStatus:
    """Return the status of a serving worker."""
    values: dict[str, Any] = {
        "event_id": event_id,
        "occurred_at_us": at_us,
        "worker_id": "worker-0",
        "engine": "torch",
        "url": "http://127.0.0.1:8000",
        "model": "demo",
        "state": "serving",
    }
    return events.new_worker_status(**(values | fields))


def dead_letter(**fields: Any) -> events.DeadLetter:
    """Return a dead letter about bytes that are not Avro."""
    values: dict[str, Any] = {
        "event_id": "d",
        "occurred_at_us": T0_US,
        "job": "govern",
        "topic": "steps",
        "partition": 0,
        "offset": 4,
        "key": b"t",
        "value_bytes": 3,
        "value_sha256": "ab" * 32,
        "error": "malformed",
        "reason": "not Avro",
    }
    return events.new_dead_letter(**(values | fields))


def training_decision(trajectory_id: str = "t", **fields: Any) -> events.TrainingDecision:
    """Return the decision that the first revision was trained on."""
    values: dict[str, Any] = {
        "event_id": f"{trajectory_id}/trained",
        "occurred_at_us": T0_US,
        "trajectory_id": trajectory_id,
        "revision": 1,
        "group_id": "g",
        "model": "demo",
        "root": 0,
        "outcome": "trained",
        "learner_version": 3,
        "staleness": 1,
        "update": 7,
        "checkpoint_version": 4,
        "partition": 2,
        "offset": 5,
        "job": "learner@1",
    }
    return events.new_training_decision(**(values | fields))


def learner_update(**fields: Any) -> events.LearnerUpdate:
    """Return an update whose tokens are in one range of staleness."""
    values: dict[str, Any] = {
        "event_id": "u",
        "occurred_at_us": T0_US,
        "model": "demo",
        "root": 0,
        "update": 7,
        "learner_version": 3,
        "groups": 2,
        "trajectories": 6,
        "figures": {"loss": 0.5},
        "lags": [events.new_lag_figures(least=9, tokens=5, effective_share=0.5, clip_share=0.2)],
        "dropped": {"no_variance": 3},
        "seconds": {"train": 0.5, "wait": 0.1},
        "job": "learner@1",
    }
    return events.new_learner_update(**(values | fields))


def _stats() -> events.TrajectoryStats:
    return events.new_trajectory_stats(
        event_id="a",
        occurred_at_us=T0_US,
        key="k",
        partition=1,
        version=7,
        agent="a",
        model="demo",
        trajectories=1,
        successes=1,
        failures=0,
        truncated=0,
        steps=1,
        errors=0,
        tool_calls=0,
        prompt_tokens=1,
        response_tokens=1,
        reward_sum=1.0,
        duration_ms_sum=1.0,
    )


def component_stats(name: str = "k", *, version: int = 1, **fields: Any) -> events.ComponentStats:
    """Return sums of ten trajectories in five groups under policy version `version`; half succeeded."""
    sums: dict[str, Any] = {"trajectories": 10, "groups": 5, "total": 5.0, "squares": 5.0, "group_squares": 5.0}
    sums |= {"group_cross": 10.0, "group_sizes": 20.0, "direction": 1}
    values: dict[str, Any] = {
        "event_id": f"{name}/{version}",
        "occurred_at_us": T0_US,
        "key": f"{name}/{version}",
        "partition": 1,
        "version": 7,
        "agent": "a",
        "model": "demo",
        "reward_spec": "outcome",
        "policy_version": version,
        "hour": T0_US // (3600 * SECOND_US),
        "components": [
            *(events.new_component_sums(name=kind, kind=kind, weight=1.0, **sums) for kind in ("reward", "success")),
            events.new_component_sums(
                name="cap:reward", kind="guard", weight=1.0, **(sums | {"trajectories": 1, "groups": 1, "total": -1.0})
            ),
        ],
    }
    return events.new_component_stats(**(values | fields))


def alarm(**fields: Any) -> events.Alarm:
    """Return an active alarm."""
    values: dict[str, Any] = {
        "event_id": "l",
        "occurred_at_us": T0_US,
        "alarm_id": "l",
        "state": "raised",
        "kind": "success",
        "agent": "a",
        "model": "demo",
        "reward_spec": "outcome",
        "rising": "length",
        "falling": "success",
        "rising_before": 0.1,
        "rising_after": 0.9,
        "falling_before": 0.5,
        "falling_after": 0.0,
        "trajectories_before": 100,
        "trajectories_after": 120,
        "p_value": 1e-9,
        "threshold": 1e-3,
        "message": "a, demo: length rose",
    }
    return events.new_alarm(**(values | fields))


SAMPLES: dict[str, Any] = {
    "governed-steps": step(),
    "governed-feedback": feedback(),
    "closures": events.new_trajectory_closed(
        event_id="c", occurred_at_us=T0_US + 1, trajectory_id="t", reason="idle", last_step_index=0, job="label@1"
    ),
    "labeled-trajectories": trajectory(),
    "trajectory-stats": _stats(),
    "component-stats": component_stats(),
    "alarms": alarm(),
    "checkpoints": checkpoint(),
    "worker-status": worker_status(),
    "rollouts": events.new_rollout(
        event_id="o", occurred_at_us=T0_US, model="demo", stable_version=1, canary_version=2, canary_share=0.1
    ),
    "curation": events.new_curation(
        event_id="h", occurred_at_us=T0_US, trajectory_id="t", action="hold", reason="by_hand", by="curator"
    ),
    "governance-audit": events.new_audit_entry(
        event_id="g",
        occurred_at_us=T0_US,
        trajectory_id="t",
        source_topic="steps",
        source_event_id="s",
        action="redacted",
        found={"email": 2, "card": 1},
        job="govern@1",
    ),
    "policies": events.new_policy(event_id="p", occurred_at_us=T0_US, tenant="*", version=1, document=""),
    "reward-specs": events.new_reward_specification(
        event_id="r", occurred_at_us=T0_US, name="support", version=1, digest="ab", document=""
    ),
    "consents": events.new_consent_change(
        event_id="s", occurred_at_us=T0_US, tenant="default", user="ada", consent="analyse"
    ),
    "erasure-proofs": events.new_erasure_proof(
        event_id="x",
        occurred_at_us=T0_US,
        request_id="r",
        tenant="default",
        subject="ab" * 20,
        requested_at_us=T0_US,
        erased_until_us=T0_US,
        version="0.1.0",
        keys_destroyed=1,
        made_unreadable=[
            events.new_erased_range(topic="governed-steps", partition=0, first_offset=3, last_offset=9, records=2)
        ],
        rows_deleted={"steps": 2},
        remaining=[events.new_erasure_remainder(place="labeled-trajectories", records=1, reason="older than sealing")],
    ),
    "erasures": events.new_erasure(event_id="x", occurred_at_us=T0_US, tenant="default", subject="ab" * 20),
    "training-decisions": training_decision(),
    "learner-updates": learner_update(),
    "dead-letters": dead_letter(),
}
