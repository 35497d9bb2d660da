"""Let new weights and their parent answer recorded prompts: `python -m stepstream.services.control.optimise.weights`.

1. Read the agent's newest trajectories on which the learner did not train, with the prompts of its stable harness.
2. Wait until workers have loaded the version as a canary that serves no trajectory, and its parent as the stable one.
3. Send each prompt to both, past the gateway: nothing is recorded, and no agent sees an answer.
4. Compare the scores of the first answers by task. Verifiers score them; calls of tools are compared with those of
   recorded successes. Texts are not: the parent wrote the recorded ones, and a right answer in other words is right.

The process ends with the controller, also if that is killed.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from stepstream.config import Settings
from stepstream.core.process import Stop, run
from stepstream.services.control.decide.canary import compared
from stepstream.services.control.decide.records import Shadow
from stepstream.services.control.optimise.child_process import run_search
from stepstream.services.control.optimise.headroom import gains_by_task
from stepstream.services.control.optimise.propose import outcome_of, verifications_of
from stepstream.services.control.optimise.read_view import read_view
from stepstream.services.control.optimise.records import Attempt, Meter
from stepstream.services.control.optimise.scoring import Scorer
from stepstream.services.control.optimise.shadow import ReplayUnavailable, ShadowReplay, post_chat, request_of
from stepstream.topics.catalogue import WORKER_STATUS
from stepstream.topics.events import Harness, Track, WorkerStatus, new_harness
from stepstream.topics.ids import now_us
from stepstream.topics.table import Table
from stepstream.versions import harnesses
from stepstream.versions.worker_agreement import MISSED_STATUSES, WrittenUs, live_workers, served_tracks

_LOOK_S = 0.5


def main(settings: Settings, _stop: Stop) -> None:
    """Replay, with the limits of the settings."""

    def search(task: Mapping[str, Any], meter: Meter) -> Mapping[str, Any]:
        shadow = replay_weights(settings, task, meter)
        reason = shadow.difference.reason or "both versions answered recorded prompts"
        return {
            "record": None,
            "reason": reason,
            "calls": meter.calls,
            "tokens": meter.tokens,
            "shadow": asdict(shadow),
        }

    run_search(settings, search, "check the workers and gateway.upstream_key")


def replay_weights(settings: Settings, task: Mapping[str, Any], meter: Meter) -> Shadow:
    """Return what a version and its parent answer to recorded prompts; blocks for as long as the models take.

    Args:
        settings: section `optimise`, and addresses.
        task: tenant, agent, its harness `versions`, `model`, the numbers `candidate` and `stable` of its versions, and
            `until_us`, the end of the wait for workers.
        meter: limits, and what was spent.

    Raises:
        ReplayUnavailable: no worker has a version in time, or one does not answer.
        ClickHouseError: the store rejects a query.
    """
    tenant, agent, model = task["tenant"], task["agent"], task["model"]
    harness = harnesses.served_harnesses(task["versions"].values()).stable or new_harness(
        event_id="", occurred_at_us=0, tenant=tenant, agent=agent, version=""
    )
    view = read_view(settings, tenant, agent, task["versions"], harness, untrained_by=model)
    scorer = Scorer(view.attempts, verifications_of(settings), outcome_of(settings, view), compares_texts=False)
    wanted: dict[Track, int] = {"stable": task["stable"], "canary": task["candidate"]}
    urls = _wait_for_workers(settings, model, wanted, task["until_us"])
    with ExitStack() as stack:
        before, after = (
            stack.enter_context(VersionReplay(settings, scorer, urls[track], track, model, wanted[track]))
            for track in ("stable", "canary")
        )
        return compare(before, after, harness, view.attempts, meter)


def compare(
    before: ShadowReplay, after: ShadowReplay, harness: Harness, attempts: Sequence[Attempt], meter: Meter
) -> Shadow:
    """Let both answer as many of the newest prompts as the budget allows, and compare them by task."""
    newest = sorted(attempts, key=lambda one: (one.steps[0]["occurred_at_us"], one.trajectory_id), reverse=True)
    chosen = newest[: meter.calls_left // 2]
    by_task = gains_by_task(before(harness, chosen, meter), after(harness, chosen, meter), chosen)
    n = sum(map(len, by_task.values()))
    return compared((sum(gains) / len(gains) for gains in by_task.values()), n, len(chosen) - n)


class VersionReplay(ShadowReplay):
    """Answers recorded prompts with one version, at a worker that has it."""

    def __init__(self, settings: Settings, scorer: Scorer, url: str, track: Track, model: str, version: int) -> None:
        super().__init__(settings.optimise, scorer)
        self._url, self._model, self._version = url, model, version
        key = settings.gateway.upstream_key
        self._headers = {"x-stepstream-track": str(track)}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key.get_secret_value().strip()}"

    def _ask(self, harness: Harness, attempt: Attempt) -> dict[str, Any] | None:
        """Return the version's reply; None: it rejects the prompt.

        Raises:
            ReplayUnavailable: the worker does not answer, or another version does.
        """
        request = {name: value for name, value in request_of(harness, attempt).items() if value is not None}
        request["model"] = self._model
        patience_s = self._settings.timeout_s
        reply = post_chat(self._http, f"{self._url}/v1", request, self._headers, patience_s)
        spans = [] if reply is None else reply["choices"][0].get("weight_versions") or []
        if other := {span["version"] for span in spans} - {self._version}:
            raise ReplayUnavailable(f"{self._url} answers with {self._model}@{min(other)}, not version {self._version}")
        return reply


def workers_with(
    statuses: Iterable[WorkerStatus],
    model: str,
    wanted: Mapping[Track, int],
    at_us: int,
    silent_s: float,
    written_us: WrittenUs,
) -> dict[Track, str]:
    """Return the address of a running worker for each wanted version, by track; without those that none has."""
    found: dict[Track, str] = {}
    for status in live_workers(statuses, model, at_us, silent_s, written_us):
        for one in served_tracks(status):
            if wanted.get(one["track"]) == one["version"]:
                found.setdefault(one["track"], status["url"].rstrip("/"))
    return found


def _wait_for_workers(settings: Settings, model: str, wanted: Mapping[Track, int], until_us: int) -> dict[Track, str]:
    silent_s = MISSED_STATUSES * settings.inference.status_every_s
    with Table(settings, WORKER_STATUS) as table:
        while True:
            found = workers_with(table.items().values(), model, wanted, now_us(), silent_s, table.written_us)
            if len(found) == len(wanted):
                return found
            if now_us() >= until_us:
                missing = ", ".join(f"{model}@{version}" for track, version in wanted.items() if track not in found)
                raise ReplayUnavailable(f"no worker has loaded {missing}")
            time.sleep(_LOOK_S)


if __name__ == "__main__":
    run("control-shadow", main)
