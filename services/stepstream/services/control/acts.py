"""Turn a decision into the records that do it. Pure.

A decision is done by the functions that `stepstream models` and `stepstream harness` use. If one
refuses, the act is failed, with its reason. Ids and times follow from the decision, so a repetition writes the same.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, cast

from stepstream.services.control.approvals import STARTED
from stepstream.services.control.decide.canary import shadow_figures
from stepstream.services.control.decide.decide import JOB
from stepstream.services.control.decide.records import CANARY, CANARY_RULES, DIVERGING_REWARDS, Shadow
from stepstream.services.control.history import AUTHOR
from stepstream.services.control.scope import Serving, scope_of, training_key
from stepstream.services.control.tool_changes import (
    add_with_tools,
    replace_canary,
    stable_changes,
    take_back_stable,
    tool_of,
)
from stepstream.topics.catalogue import DECISION_ACTS, DECISIONS, HARNESSES, ROLLOUTS, TRAINING_CONTROL
from stepstream.topics.events import (
    Decision,
    Harness,
    HarnessTool,
    TrainingControl,
    new_decision_act,
    new_harness,
    new_harness_tool,
    new_training_control,
)
from stepstream.topics.ids import derived_id
from stepstream.versions import harnesses, rollout_actions
from stepstream.versions.harnesses import HarnessRefused
from stepstream.versions.rollout_actions import RolloutRefused


class Record(NamedTuple):
    """Record to publish."""

    topic: str
    key: str
    value: Any


class Refused(Exception):
    """The decision cannot be done any more; the message has the reason."""


@dataclass(frozen=True, slots=True)
class _Identity:
    """Identity of the records of one act."""

    decision: Decision
    at_us: int

    def of(self, topic: str, *part: int) -> dict[str, Any]:
        """Return id and time of a record; further records of the act on the topic have the number of their part."""
        decision = self.decision
        event_id = derived_id(JOB, decision["event_id"], topic, *part, tenant=decision["tenant"])
        return {"event_id": event_id, "occurred_at_us": self.at_us}

    @property
    def reason(self) -> str:
        return f"{self.decision['reason']} (decision {self.decision['event_id']})"


def decision_record(decision: Decision) -> Record:
    """Return the record of the decision itself."""
    return Record(DECISIONS, scope_of(decision).key, decision)


def end(decision: Decision, state: str, at_us: int, *, description: str = "", reason: str = "") -> Record:
    """Return the record that a decision reached a state."""
    act = new_decision_act(
        event_id=derived_id(JOB, decision["event_id"], state, tenant=decision["tenant"]),
        occurred_at_us=at_us,
        tenant=decision["tenant"],
        agent=decision["agent"],
        model=decision["model"],
        decision_id=decision["event_id"],
        state=state,
        description=description,
        reason=reason,
    )
    return Record(DECISION_ACTS, scope_of(decision).key, act)


def do(
    decision: Decision, serving: Serving, at_us: int, task_weights: Mapping[str, float] | None = None
) -> list[Record]:
    """Return the records that do a decision, its act last; publish them in one transaction.

    Args:
        decision: other than `hold` and `propose`.
        serving: what serves its scope now.
        at_us: time of the act.
        task_weights: weight of each task family, for `resample`.
    """
    identity = _Identity(decision, at_us)
    try:
        records, description = _records(identity, serving, task_weights or {})
    except (Refused, RolloutRefused, HarnessRefused) as error:
        return [end(decision, "failed", at_us, reason=str(error))]
    return [*records, end(decision, "done", at_us, description=description)]


def begin(decision: Decision, at_us: int) -> Record:
    """Return the record that a search for a proposal began."""
    return end(decision, STARTED, at_us, description="searches recorded trajectories for a better harness version")


def spend(decision: Decision, at_us: int, calls: int, tokens: int) -> Record:
    """Return the record of what a search has spent since it began: the search after a crash gets the rest."""
    description = f"the search has spent {calls} calls and {tokens} tokens"
    act = end(decision, STARTED, at_us, description=description)
    identity = derived_id(JOB, decision["event_id"], STARTED, calls, tokens, tenant=decision["tenant"])
    return act._replace(value={**act.value, "event_id": identity, "calls": calls, "tokens": tokens})


def replayed(decision: Decision, at_us: int, shadow: Shadow, description: str) -> Record:
    """Return the record of what a shadow replay found about the version of a decision that is done."""
    act = end(decision, "done", at_us, description=description, reason=shadow.difference.reason)
    identity = derived_id(JOB, decision["event_id"], "shadow", tenant=decision["tenant"])
    figures = [cast(Any, asdict(one)) for one in shadow_figures(shadow)]
    return act._replace(value={**act.value, "event_id": identity, "evidence": figures})


def propose(decision: Decision, serving: Serving, found: Harness, at_us: int) -> list[Record]:
    """Return the records that put a found harness version on the log as a proposal; one transaction, the act last.

    Args:
        decision: to propose.
        serving: what serves its scope now.
        found: version that a search on the stable one has found.
        at_us: time of the act.
    """
    identity, stable = _Identity(decision, at_us), harnesses.served_harnesses(serving.harnesses.values()).stable
    try:
        if found["parents"] != ([] if stable is None else [stable["version"]]):
            raise Refused("another harness version became stable during the search: the next search starts from it")
        harness = harnesses.propose(serving.harnesses, found)
    except (Refused, HarnessRefused) as error:
        return [end(decision, "failed", at_us, reason=str(error))]
    text = f"harness {harness['version']} is proposed: {found['reason']}"
    return [_harness_record(identity, harness, found["reason"]), end(decision, "done", at_us, description=text)]


def fix_version(model: str, serving: Serving, at_us: int) -> Record | None:
    """Return the rollout that fixes the newest version as the stable one; None: one is fixed, or none is published.

    A model that follows its newest version serves each checkpoint to all before anything could try it.
    """
    served = serving.versions.served
    if not served.follows_newest or served.newest is None:
        return None
    event = rollout_actions.promote(model, serving.versions, served.newest).event(
        model,
        event_id=derived_id(JOB, model, "fix", served.newest),
        occurred_at_us=at_us,
        reason="the control plane tries each version before it serves all",
        author=AUTHOR,
    )
    return Record(ROLLOUTS, model, event)


def _records(identity: _Identity, serving: Serving, weights: Mapping[str, float]) -> tuple[list[Record], str]:
    decision = identity.decision
    match decision["action"], decision["lever"]:
        case (("train" | "pause" | "resample"), _):
            return _training(identity, serving, weights)
        case (("disable" | "rollback"), "tools"):
            return _tools(identity, serving)
        case (("canary" | "widen" | "promote" | "rollback"), "weights"):
            return _rollout(identity, serving)
        case (("canary" | "widen" | "promote" | "rollback"), _):
            return _harness(identity, serving)
        case action, lever:
            raise Refused(f"nothing does {action} with {lever}")


def _rollout(identity: _Identity, serving: Serving) -> tuple[list[Record], str]:
    decision, versions = identity.decision, serving.versions
    model, target, served = decision["model"], decision["target"], versions.served
    if not target.isdigit():
        raise Refused(f"'{target}' is no version of {model}")
    version = int(target)
    match decision["action"]:
        case "canary":
            if served.canary is not None:
                raise Refused(f"the canary of {model}@{served.canary} is running")
            if decision["share"]:
                rollout = rollout_actions.start_canary(model, versions, version, decision["share"])
                text = f"{model}@{version} serves {decision['share']:g} of trajectories"
            else:
                rollout = rollout_actions.start_shadow(model, versions, version)
                text = f"{model}@{version} answers recorded prompts, and serves no trajectory"
        case "widen":
            _check_canary(str(version), served.canary)
            rollout = rollout_actions.start_canary(model, versions, version, decision["share"])
            text = f"{model}@{version} serves {decision['share']:g} of trajectories"
        case "promote":
            _check_canary(str(version), served.canary)
            rollout = rollout_actions.promote(model, versions, version)
            text = f"{model}@{version} is stable"
        case _ if decision["rule"] in CANARY_RULES:
            if served.canary is None:
                raise Refused(f"{model} has no canary any more")
            is_bad = decision["rule"] == CANARY
            rollout = (rollout_actions.rollback if is_bad else rollout_actions.stop_canary)(model, versions)
            text = f"the canary of {model}@{served.canary} has ended; {model}@{served.stable} serves all"
        case _:
            rollout = rollout_actions.rollback(model, versions, version)
            text = f"{model}@{version} is stable again"
    fields = identity.of(ROLLOUTS)
    event = rollout.event(model, **fields, reason=identity.reason, author=AUTHOR)
    return [Record(ROLLOUTS, model, event)], text


def _harness(identity: _Identity, serving: Serving) -> tuple[list[Record], str]:
    decision, versions = identity.decision, serving.harnesses
    agent, target, served = decision["agent"], decision["target"], harnesses.served_harnesses(versions.values())
    canary = None if served.canary is None else served.canary["version"]
    match decision["action"]:
        case "canary":
            if canary is not None:
                raise Refused(f"the canary of {canary} is running")
            return _start_harness(identity, versions)
        case "widen":
            _check_canary(target, canary)
            harness = harnesses.start_canary(versions, target, decision["share"])
            text = f"harness {target} serves {decision['share']:g} of {agent}'s trajectories"
        case "promote":
            _check_canary(target, canary)
            harness = harnesses.promote(versions, target)
            text = f"harness {target} of {agent} is stable"
        case _ if decision["rule"] in CANARY_RULES:
            if canary is None:
                raise Refused(f"{agent} has no canary of a harness any more")
            harness = harnesses.take_back(versions, canary)
            text = f"the canary of harness {canary} has ended"
        case _:
            stable = None if served.stable is None else served.stable["version"]
            if stable is None or stable == target:
                raise Refused(f"the harness that it takes back does not serve {agent} any more")
            made = take_back_stable(versions, target=target)
            text = f"harness {stable} of {agent} was taken back"
            return [_harness_record(identity, one, part=number) for number, one in enumerate(made)], text
    return [_harness_record(identity, harness)], text


def _start_harness(identity: _Identity, before: Mapping[str, Harness]) -> tuple[list[Record], str]:
    """Serve a version as canary, with the changes of tools that the stable one has got since the version was made.

    A proposal may wait while a broken tool is disabled, and would offer the tool again.
    """
    decision, versions = identity.decision, dict(before)
    target, share = decision["target"], decision["share"]
    versions[target] = harnesses.start_canary(versions, target, share)
    made = [versions[target]]
    text = f"harness {target} serves {share:g} of {decision['agent']}'s trajectories"
    if changes := stable_changes(versions, versions[target]):
        made, found = replace_canary(versions, versions[target], changes)
        if len(made) == 1:
            raise Refused(f"harness {found}, which is {target} with the stable version's tools, was refused")
        names = ", ".join(sorted(changes))
        text = f"{text} as {found}, with the stable version's tools ({names})"
    return [_harness_record(identity, one, part=number) for number, one in enumerate(made)], text


def _tools(identity: _Identity, serving: Serving) -> tuple[list[Record], str]:
    """Serve a harness version that does not offer a tool, or that pins its earlier version, to all trajectories.

    A running canary that offers the same tool is replaced by a version with the same change: it would go on with the
    broken tool, and its promotion would offer the tool to all again.
    """
    decision, versions = identity.decision, dict(serving.harnesses)
    served = harnesses.served_harnesses(versions.values())
    name, _, version = decision["target"].partition("@")
    change = {"enabled": False} if decision["action"] == "disable" else {"version": version, "enabled": True}
    before = served.stable or new_harness(
        event_id="", occurred_at_us=0, tenant=decision["tenant"], agent=decision["agent"], version=""
    )
    changed = cast(HarnessTool, {**(tool_of(before, name) or new_harness_tool(name=name)), **change})
    stable = add_with_tools(versions, before, {name: changed})
    versions[stable] = harnesses.promote(versions, stable)
    made = [versions[stable]]
    text = f"{name} is not offered any more" if decision["action"] == "disable" else f"{name} is pinned to {version}"
    text = f"{text} (harness {stable})"
    canary = served.canary
    if canary is not None and tool_of(canary, name) == tool_of(before, name):
        replaced, found = replace_canary(versions, canary, {name: changed})
        made += replaced
        if len(replaced) > 1:
            text = f"{text}; canary {canary['version']} goes on as {found}"
    return [_harness_record(identity, one, part=number) for number, one in enumerate(made)], text


def _harness_record(identity: _Identity, harness: Harness, reason: str = "", part: int = 0) -> Record:
    """Return the record of a version; an empty reason: that of the decision; `part`: its number in the act, from 0."""
    key = harnesses.record_key(harness["tenant"], harness["agent"], harness["version"])
    reason = f"{reason or identity.decision['reason']} (decision {identity.decision['event_id']})"
    fields = {**identity.of(HARNESSES, *[part] * (part > 0)), "reason": reason, "author": AUTHOR}
    return Record(HARNESSES, key, {**harness, **fields})


def _training(identity: _Identity, serving: Serving, weights: Mapping[str, float]) -> tuple[list[Record], str]:
    decision, before = identity.decision, serving.training
    tenant, model, action = decision["tenant"], decision["model"], decision["action"]
    paused = (before is not None and before["paused"]) if action == "resample" else action == "pause"
    if action == "resample" and not weights:
        raise Refused("there are no outcomes of training tasks to weigh them by")
    mix = dict(weights) if action == "resample" else {} if before is None else before["task_weights"]
    control: TrainingControl = new_training_control(
        **identity.of(TRAINING_CONTROL),
        tenant=tenant,
        model=model,
        paused=paused,
        task_weights=mix,
        excluded_reward_specs=_excluded_specs(decision, serving),
        reason=identity.reason,
        decision_id=decision["event_id"],
    )
    text = {"train": "learning resumes", "pause": "learning is paused"}.get(action, "task families have new weights")
    return [Record(TRAINING_CONTROL, training_key(tenant, model), control)], text


def _excluded_specs(decision: Decision, serving: Serving) -> dict[str, str]:
    """Return the excluded reward specifications: those before, and those of the alarms that pause learning.

    A resume keeps them: labels of the time before still wait in the log.
    """
    found = {} if serving.training is None else dict(serving.training["excluded_reward_specs"])
    if (decision["action"], decision["rule"]) == ("pause", DIVERGING_REWARDS):
        # An alarm about a worker's log-probabilities (`engine_gap`) names none.
        found |= {one["reward_spec"]: decision["event_id"] for one in serving.alarms if one["reward_spec"]}
    return dict(sorted(found.items()))


def _check_canary(version: str, canary: str | int | None) -> None:
    if canary is None or str(canary) != version:
        raise Refused(f"{version} is not the canary any more")
