"""Records calls that have ended: all of one turn of the event loop together, before their answers leave the process.

Together they cost about half of what they would one by one, since the same little code runs over all of them while the
processor has it at hand. No answer is later for it: uvloop sends what was written in a turn at the turn's end.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from stepstream.services.gateway.call_plan import CallPlan
from stepstream.services.gateway.context.cache import ContextCache
from stepstream.services.gateway.context.saved_responses import SavedResponses
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.protocols.base import Answer, History
from stepstream.services.gateway.protocols.chat.protocol import raw_messages
from stepstream.services.gateway.publisher import Event, Publisher
from stepstream.services.gateway.step_builder import Timing, branch, build_step

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Ended:
    plan: CallPlan
    answer: Answer
    timing: Timing
    recorded: asyncio.Future[None]


class Recorder:
    """Makes a step of each answer, and publishes it. For one event loop."""

    def __init__(
        self, contexts: ContextCache, histories: SavedResponses, publisher: Publisher, metrics: Metrics, producer: str
    ) -> None:
        """`producer`: program that writes the events, as `gateway/0.1.0`."""
        self._contexts = contexts
        self._histories = histories
        self._publisher = publisher
        self._metrics = metrics
        self._producer = producer
        self._ended: list[_Ended] = []

    def record(self, plan: CallPlan, answer: Answer, timing: Timing) -> asyncio.Future[None]:
        """Records a call in the loop's next turn, whether or not anybody waits for what is returned to be done."""
        loop = asyncio.get_running_loop()
        if not self._ended:
            loop.call_soon(self._record_all)
        recorded = loop.create_future()
        self._ended.append(_Ended(plan, answer, timing, recorded))
        return recorded

    def _record_all(self) -> None:
        ended, self._ended = self._ended, []
        events: list[Event] = []
        try:
            for call in ended:
                self._steps(call.plan, call.answer, call.timing, events.append)
            self._publisher.publish_all(events)
        finally:
            for call in ended:
                if not call.recorded.done():  # it is, where its caller has gone away in the meantime
                    call.recorded.set_result(None)

    def _steps(self, plan: CallPlan, answer: Answer, timing: Timing, out: Callable[[Event], None]) -> None:
        for number, other in enumerate(answer.others, 1):
            other.response_id = ""  # the answer's own id names the first
            self._step(plan, number, other, timing, out)
            self._metrics.alternatives.inc()
        if plan.protocol.name != "responses":
            answer.response_id = ""  # nothing is asked for by it
        # After its alternatives: of equal ones, later calls go on from this one.
        self._step(plan, 0, answer, timing, out)
        self._metrics.ended(answer.error)

    def _step(self, plan: CallPlan, number: int, answer: Answer, timing: Timing, out: Callable[[Event], None]) -> None:
        """The event of an answer: the first, or an alternative with a number from 1."""
        place = plan.call.place
        try:
            call = branch(self._contexts, plan.call, number) if number else plan.call
            identity, place = call.identity, call.place
            step = build_step(self._contexts, call, answer, timing, self._producer)
            if plan.kept and answer.error is None and answer.response_id:
                said = raw_messages(plan.request, answer)[plan.instructions :]
                history = History(said, place.trajectory.id, plan.persons)
                self._histories.keep(identity.tenant, answer.response_id, history, step["user"], call.started_us)
            if plan.stored:
                self._histories.keep_items(identity.tenant, answer.items, step["user"], call.started_us)
        except Exception:  # whatever an upstream may send, the agent's call goes well
            log.exception("step %d of trajectory %s cannot be recorded", place.step_index, place.trajectory.id)
            self._metrics.events_lost.inc()
        else:
            headers = {"traceparent": identity.traceparent} if identity.traceparent else None
            out(Event("steps", place.trajectory.id, step, headers))
