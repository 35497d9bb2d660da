"""Run the stack's loop on a virtual clock with measured stage times.

Generation (the engine's batch on real weights), training, admission and the demo's target are real; only the duration
of each piece of work comes from a table. So runs repeat exactly under any load, and can simulate other machines.
"""

import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from in_process import Conversation, Policy, Renderer
from in_process.generating import MAX_TOKENS

from asynchrony.clock import Callback, Clock, Cores, Server
from asynchrony.stages import CONTEXT, Stages
from stepstream.config import Settings
from stepstream.services.fleet.__main__ import admission_of
from stepstream.services.fleet.environment import load_environment
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.continuous_batch import Batch, Generation
from stepstream.services.inference.engine import TokenChunk
from stepstream.services.inference.llama import LlamaWeights

WATCH_EVERY_S = 1.0
_PROCESSES = ("fleet", "gateway", "govern", "label", "rest")


@dataclass(slots=True)
class _Engine:
    """State of an inference worker."""

    batch: Batch
    waiting: deque[Conversation] = field(default_factory=deque)
    fresh: tuple[LlamaWeights, int] | None = None
    ended: list[tuple[Conversation, TokenChunk]] = field(default_factory=list)
    busy: bool = False
    busy_s: float = 0.0


class Loop:
    """One run of the demo."""

    def __init__(self, settings: Settings, base: Path, seed: int, stages: Stages, cores: float) -> None:
        """`cores` are shared by all processes; infinite: every process has its own."""
        torch.set_num_threads(1)
        self._settings, self._stages, self._seed = settings, stages, seed
        self.clock = Clock()
        self.cores = Cores(self.clock, cores)
        self._servers = {name: Server(self.cores) for name in _PROCESSES}
        self._renderer = Renderer(ChatTokenizer(base), load_environment(settings.fleet.environment))
        weights, rows = LlamaWeights(base), settings.inference.max_batch
        self._engines = [_Engine(Batch(weights, 0, rows, CONTEXT)) for _ in range(settings.stack.workers)]
        self._policy = Policy(settings, base)
        self._learning, self._learn_s, self._unread = False, 0.0, 0
        self._busy_s: defaultdict[str, float] = defaultdict(float)
        """Seconds of the learner's work by activity, with the time that it waited for a core."""
        self._admission = admission_of(settings)
        self._groups = self._new_groups()
        self._next: deque[Conversation] = deque()
        self._running = 0
        self._admission_changes = 0
        self._holds = 0
        self._recent: deque[float] = deque(maxlen=settings.demo.window)
        self._evaluation: list[Conversation] | None = None
        self._evaluation_queue: deque[Conversation] = deque()
        self._evaluated = 0
        self._evaluations = 0
        self.success: float | None = None
        self.samples = 0
        self._staleness: list[tuple[float, float, float]] = []
        """Tokens, mean and maximum staleness of each update."""

    def run(self, deadline_s: float) -> dict[str, Any]:
        """Run until held-out success reaches the target or the deadline comes; return the run's figures."""
        began = time.process_time()
        self.clock.after(0.0, self._fill)
        self.clock.after(WATCH_EVERY_S, self._watch)
        reached = self.clock.run(lambda: self.success is not None, deadline_s)
        now = max(self.clock.now, 1e-9)
        tokens = max(1.0, sum(tokens for tokens, _, _ in self._staleness))
        return {
            "seconds": round(now, 2) if reached else None,
            "versions": self._policy.version,
            "samples": self.samples,
            "staleness_mean": round(sum(n * mean for n, mean, _ in self._staleness) / tokens, 3),
            "staleness_max": max((most for _, _, most in self._staleness), default=0.0),
            "stale_dropped": self._policy.buffer.dropped["stale"],
            "held_back": self._holds,
            "generating_share": round(sum(engine.busy_s for engine in self._engines) / now / len(self._engines), 3),
            "training_share": round(self._learn_s / now, 3),
            "learner_s": self._learner_seconds(now),
            "cores_used": round(self.cores.busy_s / now, 3),
            "cpu_s": round(time.process_time() - began, 1),
        }

    # Agents

    def _new_groups(self) -> Iterator[list[Conversation]]:
        tasks = self._renderer.environment.tasks(self._seed + 1, "train")
        for number, task in enumerate(tasks):
            names = [f"{number}/{attempt}" for attempt in range(self._settings.fleet.group_size)]
            yield [Conversation(task, f"g{number}", name, self._seed, self._renderer) for name in names]

    def _fill(self) -> None:
        """Start attempts up to the concurrency, and groups while admission permits."""
        while self._running < self._settings.fleet.concurrency:
            if not self._next:
                if self._admission is not None:
                    if not self._admission.admits():
                        self._hold()
                        return
                    self._admission.start_group()
                self._admission_changes += 1
                self._next.extend(next(self._groups))
            self._running += 1
            self.samples += 1
            self._call_model(self._next.popleft())

    def _hold(self) -> None:
        """Admit a group after the admission's relief time if nothing changed."""
        assert self._admission is not None
        self._holds += 1
        changes, admission = self._admission_changes, self._admission

        def relieve() -> None:
            if changes == self._admission_changes:
                admission.relieve()
                self._fill()

        self.clock.after(admission.relief_after_s(), relieve)

    def _call_model(self, conversation: Conversation) -> None:
        self._pass_processes(["fleet", "gateway"], lambda: self._submit(conversation))

    def _pass_processes(self, names: list[str], then: Callback) -> None:
        """Do one step's work at each process in turn."""
        if not names:
            then()
            return
        seconds = self._stages.plumbing[names[0]]
        self._servers[names[0]].do(seconds, lambda: self._pass_processes(names[1:], then))

    # Inference worker

    def _submit(self, conversation: Conversation) -> None:
        engine = min(self._engines, key=lambda engine: len(engine.waiting) + engine.batch.running)
        engine.waiting.append(conversation)
        self._generate(engine)

    def _generate(self, engine: _Engine) -> None:
        """Run one round of an engine's loop: swap weights, join requests, decode one token for each row."""
        stages = self._stages
        if engine.busy or not (engine.fresh or engine.waiting or engine.batch.running):
            return
        engine.busy, seconds = True, 0.0
        with torch.inference_mode():
            if engine.fresh is not None:
                seconds += stages.swap_s + stages.recompute_row_s * engine.batch.running
                engine.batch.swap(*engine.fresh)
                engine.fresh = None
            joining = [engine.waiting.popleft() for _ in range(min(engine.batch.free, len(engine.waiting)))]
            if joining:
                tokens = sum(len(conversation.prompt) for conversation in joining)
                seconds += stages.prefill_token_s * tokens + stages.call_s * len(joining)
                engine.batch.join([_generation(conversation, engine.ended) for conversation in joining])
            if engine.batch.running:
                seconds += stages.decode_s + stages.decode_row_s * engine.batch.running
                engine.batch.step()
        ended = [*engine.ended]
        engine.ended.clear()
        engine.busy_s += seconds
        self.cores.work(seconds, lambda: self._deliver(engine, ended))

    def _deliver(self, engine: _Engine, ended: list[tuple[Conversation, TokenChunk]]) -> None:
        engine.busy = False
        for conversation, chunk in ended:
            more = conversation.respond(chunk)
            self._servers["rest"].do(self._stages.plumbing["rest"], lambda: None)
            self._pass_processes(["govern", "label"], lambda last=not more, c=conversation: self._labelled(c, last))  # type: ignore[misc]
            if more:
                self._call_model(conversation)
            elif conversation.split == "eval":
                self._evaluate_next()
            else:
                self._running -= 1
                if self._admission is not None:
                    self._admission.end_attempt(conversation.group_id, conversation.outcome)
                self._fill()
        self._generate(engine)

    # Labels and learner

    def _labelled(self, conversation: Conversation, last: bool) -> None:
        if last:
            self.clock.after(self._stages.label_wait_s, lambda: self._arrived(conversation))

    def _arrived(self, conversation: Conversation) -> None:
        if conversation.split == "eval":
            self._evaluated += 1
            self._end_evaluation()
            return
        self._recent.append(conversation.outcome)
        self._policy.read([conversation], self.clock.now)
        self._unread += 1
        self._learn()

    def _learn(self) -> None:
        policy = self._policy
        if self._learning or not policy.update():
            return
        figures = policy.figures[-1]
        self._staleness.append((figures["tokens"], figures["staleness_mean"], figures["staleness_max"]))
        work = {
            "train": self._stages.update_token_s * figures["tokens"],
            "read": self._stages.read_s * self._unread,
        }
        self._unread = 0
        has_all_updates = len(policy.figures) >= policy.config.updates_per_checkpoint
        self._train(work, self._publish if has_all_updates else self._learn)

    def _publish(self) -> None:
        self._train({"publish": self._stages.publish_s}, self._published)

    def _published(self) -> None:
        weights, version = self._policy.publish(), self._policy.version
        self.clock.after(self._stages.announce_wait_s, lambda: self._announced(weights, version))
        self._learn()

    def _announced(self, weights: LlamaWeights, version: int) -> None:
        for engine in self._engines:
            engine.fresh = (weights, version)
            self._generate(engine)
        if self._admission is not None:
            self._admission_changes += 1
            self._admission.advance(version, self.clock.now)
            self._fill()

    def _train(self, work: Mapping[str, float], then: Callback) -> None:
        """Do CPU seconds of each activity, then call `then`."""
        seconds, began = sum(work.values()), self.clock.now
        self._learning = True
        self._learn_s += seconds

        def done() -> None:
            for activity, share in work.items():
                self._busy_s[activity] += (self.clock.now - began) * share / seconds
            self._learning = False
            then()

        self.cores.work(seconds, done)

    def _learner_seconds(self, now: float) -> dict[str, float]:
        """Return the learner's seconds by activity; records are decoded between updates."""
        seconds_by_activity = {"wait": now - sum(self._busy_s.values()), **self._busy_s}
        return {activity: round(seconds, 3) for activity, seconds in seconds_by_activity.items()}

    # The demo's watch

    def _watch(self) -> None:
        demo, recent = self._settings.demo, self._recent
        full = len(recent) == demo.window
        if self._evaluation is None and full and sum(recent) / len(recent) >= demo.target + demo.margin:
            self._evaluations += 1
            tasks = islice(self._renderer.environment.tasks(0, "eval"), demo.held_out)
            self._evaluation = [
                Conversation(task, "", f"exam {self._evaluations}/{number}", self._seed, self._renderer, split="eval")
                for number, task in enumerate(tasks)
            ]
            self._evaluation_queue, self._evaluated = deque(self._evaluation), 0
            for _ in range(self._settings.fleet.concurrency):
                self._evaluate_next()
        self.clock.after(WATCH_EVERY_S, self._watch)

    def _evaluate_next(self) -> None:
        if self._evaluation_queue:
            self._call_model(self._evaluation_queue.popleft())

    def _end_evaluation(self) -> None:
        assert self._evaluation is not None
        if self._evaluated == len(self._evaluation):
            success = sum(conversation.outcome == 1.0 for conversation in self._evaluation) / len(self._evaluation)
            self._evaluation = None
            if success >= self._settings.demo.target:
                self.success = success


def _generation(conversation: Conversation, ended: list[tuple[Conversation, TokenChunk]]) -> Generation:
    return Generation(
        conversation.prompt, conversation.sampling(MAX_TOKENS), lambda chunk: ended.append((conversation, chunk))
    )
