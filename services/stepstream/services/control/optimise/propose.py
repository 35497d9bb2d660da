"""Run an optimiser on the view of an agent, and return a harness version to try, with its headroom.

1. Take the agent's stable harness version as the parent; without one, the agent's own calls.
2. Read the view.
3. Search: examples first, since they need no other model; then the reflection model, if one is set.
4. Return the record of a proposal whose gain is confirmed. The caller writes it; a canary tries it.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, cast

from stepstream.config import OptimiseSettings, Settings
from stepstream.jobs.rewards.spec import load_spec
from stepstream.jobs.rewards.spec_lookup import closest, parse_record, rejection_of
from stepstream.jobs.verifiers.options import VerifierContext
from stepstream.jobs.verifiers.specification import Verification
from stepstream.jobs.verifiers.specification import load as load_verifications
from stepstream.services.control.decide.records import evidence
from stepstream.services.control.optimise.examples import ExamplesSearch
from stepstream.services.control.optimise.gepa_search import GepaSearch
from stepstream.services.control.optimise.read_view import read_view
from stepstream.services.control.optimise.records import (
    Answerer,
    Budget,
    BudgetSpent,
    CannotSearch,
    Meter,
    Optimiser,
    Proposal,
    View,
)
from stepstream.services.control.optimise.reflection import ReflectionModel
from stepstream.services.control.optimise.scoring import Scorer
from stepstream.services.control.optimise.shadow import ShadowReplay
from stepstream.topics.catalogue import REWARD_SPECS
from stepstream.topics.events import Harness, new_decision_evidence, new_harness
from stepstream.topics.table import Table
from stepstream.versions import harnesses
from stepstream.versions.harnesses import HarnessRefused

By = Literal["examples", "gepa"]
_TABLE_S = 30.0


@dataclass(frozen=True, slots=True)
class Search:
    """Result of a search."""

    record: Harness | None
    """New version in state `proposed`, without `event_id`, time and author; None: none, for `reason`."""
    reason: str
    attempts: int
    """Trajectories of the view."""
    calls: int
    tokens: int


def propose_version(
    settings: Settings,
    versions: Mapping[str, Harness],
    tenant: str,
    agent: str,
    by: Sequence[By] = (),
    meter: Meter | None = None,
) -> Search:
    """Search a better harness for an agent; blocks for as long as the models take.

    Args:
        settings: section `optimise`, and addresses.
        versions: the agent's harness versions.
        tenant: tenant of the agent.
        agent: its name.
        by: optimisers, tried in order until one proposes; empty: all that the settings allow.
        meter: limits, and what was spent; None: the limits of the settings.

    Raises:
        ReplayUnavailable: the gateway or the reflection model does not answer.
        ClickHouseError: the store rejects a query.
    """
    parent = harnesses.served_harnesses(versions.values()).stable or new_harness(
        event_id="", occurred_at_us=0, tenant=tenant, agent=agent, version=""
    )
    view = read_view(settings, tenant, agent, versions, parent)
    scorer = Scorer(view.attempts, verifications_of(settings), outcome_of(settings, view))
    meter = meter or Meter(Budget(settings.optimise.calls, settings.optimise.tokens))
    with ShadowReplay(settings.optimise, scorer) as answer:
        return search(settings.optimise, answer, view, versions, parent, by, meter)


def search(
    settings: OptimiseSettings,
    answer: Answerer,
    view: View,
    versions: Mapping[str, Harness],
    parent: Harness,
    by: Sequence[By],
    meter: Meter,
) -> Search:
    """Try optimisers in order until one proposes."""
    reasons = []
    for name in by or (("examples", "gepa") if settings.reflection_url else ("examples",)):
        with ExitStack() as stack:
            try:
                optimiser = _optimiser(name, settings, answer, meter, stack)
                found = optimiser.propose(view, parent, Budget(meter.calls_left, settings.tokens))
                if found:
                    record = _record(versions, found[0])
                    return Search(record, record["reason"], len(view.attempts), meter.calls, meter.tokens)
                reasons.append(f"{name}: no gain is confirmed")
            except (CannotSearch, BudgetSpent, HarnessRefused) as error:
                reasons.append(f"{name}: {error}")
    return Search(None, "; ".join(reasons), len(view.attempts), meter.calls, meter.tokens)


def _optimiser(name: By, settings: OptimiseSettings, answer: Answerer, meter: Meter, stack: ExitStack) -> Optimiser:
    if name == "examples":
        return ExamplesSearch(answer, meter)
    return GepaSearch(answer, stack.enter_context(ReflectionModel(settings)), meter)


def _record(versions: Mapping[str, Harness], proposal: Proposal) -> Harness:
    gain = evidence("headroom", proposal.headroom)
    record = harnesses.propose(versions, proposal.harness)
    reason = (
        f"{proposal.description}: gain {gain.value:.3g} [{gain.low:.3g}, {gain.high:.3g}] on {gain.n} recorded prompts"
    )
    fields = {"proposer": f"optimise/{proposal.optimiser}", "reason": reason, "share": 0.0, "pinned": False}
    headroom = new_decision_evidence(
        name=gain.name, value=gain.value, low=gain.low, high=gain.high, n=gain.n, reason=gain.reason
    )
    return cast(Harness, {**record, **fields, "headroom": headroom})


def verifications_of(settings: Settings) -> Sequence[Verification]:
    """Return the verifications of the fleet."""
    file = settings.verify.file
    return () if file is None else load_verifications(file, VerifierContext(settings, file.parent))


def outcome_of(settings: Settings, view: View) -> str:
    """Return the name of the feedback that decides success, by the reward specification of the newest trajectory."""
    with Table(settings, REWARD_SPECS, rejection_of=rejection_of) as table:
        table.wait_current(_TABLE_S)
        published = [parse_record(record) for record in table.items().values()]
    step = view.attempts[-1].steps[0] if view.attempts else None
    found = closest(published, step["environment"], step["agent"]) if step is not None else None
    spec = load_spec(settings.label.reward_spec) if found is None else found.spec
    return next((one.feedback for one in spec.component if one.outcome and one.feedback), "")
