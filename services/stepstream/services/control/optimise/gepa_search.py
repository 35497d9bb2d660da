"""Search instructions and descriptions of tools by reflective evolution (GEPA, arXiv:2507.19457).

The library `gepa` keeps a Pareto frontier of candidates and asks a reflection model to rewrite a text of one of them,
given recorded prompts, the candidate's answers and why they are wrong. The library is an extra: `optimise`.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import orjson

from stepstream.services.control.optimise.headroom import check_tasks, confirm, confirmed
from stepstream.services.control.optimise.records import (
    Answerer,
    Attempt,
    Budget,
    CannotSearch,
    Meter,
    Proposal,
    Trial,
    View,
    split,
)
from stepstream.topics.events import Harness, new_harness_tool
from stepstream.versions.harnesses import version_of

log = logging.getLogger(__name__)

NAME = "gepa"
INSTRUCTIONS = "instructions"
TOOL = "tool:"
"""Prefix of the name of a tool's description among the texts of a candidate."""
_BATCH = 4
"""Prompts that one reflection sees."""
Reflect = Callable[[str, Meter], str]
"""Calls the reflection model: a question and the meter in, its answer out."""


class GepaSearch:
    """Rewrites texts of a harness."""

    def __init__(self, answer: Answerer, reflect: Reflect, meter: Meter | None = None, seed: int = 0) -> None:
        """`meter` counts a search that another one began; None: a new one for each search."""
        self._answer, self._reflect, self._meter, self._seed = answer, reflect, meter, seed

    def propose(self, view: View, parent: Harness, budget: Budget) -> Sequence[Proposal]:
        """As `Optimiser`. An eighth of the calls tests each of parent and candidate at the end."""
        meter = self._meter or Meter(budget)
        calls, parts = meter.calls_left, split(view)
        choosing, confirming = parts.choosing[: calls // 10], parts.confirming[: calls // 8]
        check_tasks(parts.sources, "learn")
        check_tasks(choosing, "choose")
        check_tasks(confirming, "confirm")
        texts = seed_texts(view.attempts, parent)
        adapter = _Adapter(self._answer, meter, parent, texts)
        reserve = 2 * len(confirming)
        best = self._evolve(adapter, texts, parts.sources, choosing, reserve)
        if best is None:
            return []
        candidate = with_texts(parent, texts, best)
        gain = confirm(self._answer, parent, candidate, confirming, meter)
        changed = ", ".join(sorted(name for name, text in best.items() if text != texts[name]))
        return [Proposal(candidate, gain, f"rewritten: {changed}", NAME)] if confirmed(gain) else []

    def _evolve(
        self,
        adapter: "_Adapter",
        texts: dict[str, str],
        sources: Sequence[Attempt],
        choosing: Sequence[Attempt],
        reserve: int,
    ) -> dict[str, str] | None:
        """Return the texts that were best on the choosing part; None: those of the parent."""
        try:
            from gepa.api import optimize
        except ImportError:
            raise CannotSearch("the library gepa is missing: install stepstream[optimise]") from None
        meter = adapter.meter
        round_calls = 2 * _BATCH + 1 + len(choosing)
        if meter.calls_left < reserve + len(choosing) + round_calls:
            raise CannotSearch(f"a budget of {meter.calls_left} calls allows no round: raise it")
        result: Any = optimize(
            seed_candidate=dict(texts),
            trainset=list(sources),
            valset=list(choosing),
            adapter=cast(Any, adapter),
            reflection_lm=lambda prompt: self._reflect(prompt, meter),
            reflection_minibatch_size=_BATCH,
            stop_callbacks=lambda _state: meter.calls_left < reserve + round_calls,
            logger=_Log(),
            track_best_outputs=False,
            cache_evaluation=True,
            seed=self._seed,
        )
        best = result.candidates[result.best_idx]
        return None if best == texts else dict(best)


class _Adapter:
    """Connects gepa to recorded prompts; its methods and their arguments are gepa's `GEPAAdapter`."""

    propose_new_texts = None

    def __init__(self, answer: Answerer, meter: Meter, parent: Harness, texts: Mapping[str, str]) -> None:
        self.meter = meter
        self._answer, self._parent, self._texts = answer, parent, texts

    def evaluate(self, batch: list[Attempt], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        """Answer recorded prompts with a candidate; a prompt that nothing can score counts 0 for every candidate."""
        from gepa.core.adapter import EvaluationBatch

        trials = self._answer(with_texts(self._parent, self._texts, candidate), batch, self.meter)
        scores = [trial.score or 0.0 for trial in trials]
        traces = list(zip(batch, trials, strict=True)) if capture_traces else None
        return EvaluationBatch(outputs=trials, scores=scores, trajectories=traces)

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> dict[str, list[dict[str, str]]]:
        """Return prompts, answers and reasons for the reflection model."""
        records = [_record(attempt, trial) for attempt, trial in eval_batch.trajectories]
        return dict.fromkeys(components_to_update, records)


class _Log:
    """Sends gepa's messages to the log."""

    def log(self, message: str) -> None:
        """Log one message."""
        log.debug("%s", message)


def seed_texts(attempts: Sequence[Attempt], parent: Harness) -> dict[str, str]:
    """Return the texts in force: the parent's, else the agent's most frequent recorded ones."""
    prompts = Counter(
        message["content"] for attempt in attempts for message in attempt.prompt[:1] if message["role"] == "system"
    )
    recorded = prompts.most_common(1)[0][0] if prompts else ""
    texts = {INSTRUCTIONS: recorded if parent["instructions"] is None else parent["instructions"]}
    definitions = Counter(attempt.steps[0]["tool_definitions"] or "[]" for attempt in attempts)
    changed = {tool["name"]: tool for tool in parent["tools"]}
    for offered in orjson.loads(definitions.most_common(1)[0][0]) if definitions else []:
        function = offered.get("function", offered)
        change = changed.get(function["name"])
        if change is None or change["enabled"]:
            own = change["description"] if change is not None else None
            texts[TOOL + function["name"]] = function.get("description") or "" if own is None else own
    return texts


def with_texts(parent: Harness, before: Mapping[str, str], texts: Mapping[str, str]) -> Harness:
    """Return the parent with the texts that changed, as a proposal; unchanged texts stay the agent's own."""
    tools = {tool["name"]: tool for tool in parent["tools"]}
    for name, text in texts.items():
        if name.startswith(TOOL) and text != before[name]:
            tool = name.removeprefix(TOOL)
            tools[tool] = {**tools.get(tool, new_harness_tool(name=tool)), "description": text}
    instructions = texts[INSTRUCTIONS]
    kept = parent["instructions"] if instructions == before[INSTRUCTIONS] else instructions
    harness: Harness = {**parent, "instructions": kept, "tools": list(tools.values())}
    harness["version"] = version_of(harness)
    harness["parents"] = [parent["version"]] if parent["version"] else []
    return harness


def _record(attempt: Attempt, trial: Trial) -> dict[str, str]:
    answer = trial.answer
    calls = [f"{call['name']}({call['arguments']})" for call in answer["tool_calls"]] if answer else []
    return {
        "Inputs": "\n".join(
            f"{one['role']}: {one['content']}" for one in attempt.prompt if one["role"] not in ("system", "developer")
        ),
        "Generated Outputs": " ".join([answer["content"] if answer else "", *calls]).strip(),
        "Feedback": trial.feedback or "Nothing can score the answer.",
    }
