"""From traces to the log's records: which step each call is, with which tools, below which trajectory.

Pure but for what it remembers (`SpanIndex`): no clock, no I/O. A record's id is derived from trace, span and kind, so a
span that is sent twice folds to one event.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from stepstream.services.gateway.otlp.attributes import text, whole
from stepstream.services.gateway.otlp.calls import Call, call_of, hash_of, offer_of
from stepstream.services.gateway.otlp.evaluations import Told, feedback_of, whose
from stepstream.services.gateway.otlp.identity import Defaults, Identities, Identity
from stepstream.services.gateway.otlp.messages import encoded, shared
from stepstream.services.gateway.otlp.span_index import SpanIndex, Trajectory
from stepstream.services.gateway.otlp.spans import AGENT, TOOL, Span
from stepstream.services.gateway.otlp.tool_spans import attach
from stepstream.services.gateway.otlp.trace import Run, Trace, name_of, runs_of
from stepstream.topics.events import Message, Step, new_message, new_sampling, new_step
from stepstream.topics.ids import derived_id

JOB = "otlp@1"
EMPTY = new_step(
    event_id="",
    occurred_at_us=0,
    producer="",
    consent="none",
    trajectory_id="",
    step_index=0,
    agent="",
    model="",
    fidelity="span",
    response=new_message(role="assistant"),
    sampling=new_sampling(),
)
"""What every step is copied from; its lists stay empty."""


class AssembledRecord(NamedTuple):
    """One record to publish."""

    topic: str
    key: str
    record: Any
    headers: Mapping[str, str] | None = None


class Assembler:
    """Makes records of traces, one trace at a time."""

    def __init__(self, producer: str, places: SpanIndex) -> None:
        """`producer` is the program that writes the events, as `gateway-otlp/0.1.0`."""
        self._producer = producer
        self._places = places

    def records(self, trace: Trace, defaults: Defaults) -> list[AssembledRecord]:
        """The steps and the feedback that a trace tells of.

        Args:
            trace: its spans and log records.
            defaults: of the tenant that sent it.
        """
        calls = trace.calls()
        steps: dict[str, Step] = {}
        found = []
        if len(calls) == 1 and len(trace.spans) == 1:
            runs = [Run(None, calls)]  # a call on its own, as most services send them
        else:
            runs = runs_of(trace, calls) if calls else []
        names: dict[int, str] = {}
        base = ""
        identities = Identities(trace, defaults)
        for run in runs:
            base = base or identities.of(run.calls[0]).conversation or trace.trace_id
            name = self._name(trace, run, base)
            names[id(run)] = name
            parent = self._caller(trace, run, names, steps) if run.parent is not None else (None, None)
            agent = name_of(run.agent) if run.agent is not None else ""
            for span in run.calls:
                step = self._step(trace, run, span, name, agent, parent, identities.of(span), defaults)
                steps[span.span_id] = step
                context = {"traceparent": f"00-{span.trace_id}-{span.span_id}-01"}
                found.append(AssembledRecord("steps", step["trajectory_id"], step, context))
        tools: dict[str, tuple[Step, str]] = {}
        if len(trace.spans) > len(calls):
            tools = attach(trace, runs, steps)
            self._end(trace, runs, steps)
        told = Told(trace, runs, steps, tools)
        self._remember(trace, told)
        for feedback in feedback_of(trace, told, self._places, defaults, JOB):
            feedback["producer"] = self._producer
            found.append(AssembledRecord("feedback", feedback["trajectory_id"], feedback))
        return found

    def _name(self, trace: Trace, run: Run, base: str) -> str:
        if run.parent is None or run.agent is None:
            return base
        return f"{trace.trace_id}-{run.agent.span_id}"

    def _caller(
        self, trace: Trace, run: Run, names: dict[int, str], steps: dict[str, Step]
    ) -> tuple[str | None, int | None]:
        """The trajectory and the step that called a run: the one whose tool it is, else the last that had begun."""
        assert run.parent is not None
        assert run.agent is not None
        tool = next((s for s in trace.above(run.agent) if s.role is TOOL), None)
        asked = text(tool.attributes.get("gen_ai.tool.call.id")) if tool is not None else ""
        before: Step | None = None
        for span in run.parent.calls:
            step = steps.get(span.span_id)
            if step is None:  # spans that are their own ancestors: the caller comes later
                continue
            if asked and any(call["call_id"] == asked for call in step["response"]["tool_calls"]):
                return step["trajectory_id"], step["step_index"]
            if span.start_ns <= run.agent.start_ns:
                before = step
        if before is None:
            return names.get(id(run.parent)), None
        return before["trajectory_id"], before["step_index"]

    def _step(
        self,
        trace: Trace,
        run: Run,
        span: Span,
        name: str,
        agent: str,
        parent: tuple[str | None, int | None],
        identity: Identity,
        defaults: Defaults,
    ) -> Step:
        call = call_of(span, trace.logs.get(span.span_id, ()) if trace.logs else ())
        conversation = identity.conversation if run.parent is None else ""
        trajectory_id = identity.trajectory_id or conversation or name
        index, trajectory = self._index(trace, span, call, defaults.tenant, trajectory_id)
        again = index < trajectory.next_index - 1
        error = span.error
        old, offered = 0, 0
        # Some tell an agent's tools once, for all of its calls.
        offer = call.offer or (offer_of(run.agent.attributes) if run.agent is not None else "")
        if not again:
            said = [encoded(message) for message in call.prompt]
            old = shared(said, trajectory.said)
            offered = trajectory.offer if old else 0
            trajectory.said = [*said, encoded(call.response)] if error is None else ()
            trajectory.offer = hash_of(offer)
        attributes = span.attributes
        step = EMPTY.copy()
        step.update(identity.fields)  # type: ignore[typeddict-item]
        response_id = text(attributes.get("gen_ai.response.id"))
        self._places.put(span.trace_id, span.span_id, (trajectory_id, index, whose(step)), response_id)
        step["event_id"] = derived_id(JOB, span.trace_id, span.span_id, "step")
        step["occurred_at_us"] = span.start_ns // 1000
        step["producer"] = self._producer
        step["trajectory_id"] = trajectory_id
        step["step_index"] = index
        step["parent_trajectory_id"] = identity.parent_trajectory_id or parent[0]
        step["parent_step_index"] = parent[1]
        step["agent"] = self._agent(span, agent) or defaults.agent
        step["model"] = call.model
        step["prompt_shared_messages"] = old
        step["messages"] = call.prompt[old:] if old else call.prompt
        step["tool_definitions"] = None if hash_of(offer) == offered else offer or "[]"
        step["response"] = call.response
        step["sampling"] = call.sampling
        step["finish_reason"] = "error" if error else call.finish_reason
        step["error"] = error
        step["duration_ms"] = span.duration_ms
        step["first_token_ms"] = call.first_token_ms
        step["cost_usd"] = call.cost_usd
        step["usage_prompt_tokens"] = call.usage_prompt_tokens
        step["usage_response_tokens"] = call.usage_response_tokens
        return step

    def _index(self, trace: Trace, span: Span, call: Call, tenant: str, trajectory_id: str) -> tuple[int, Trajectory]:
        """The step's index and its trajectory, whose counter has moved past it."""
        known = self._places.trajectory(tenant, trajectory_id)
        told = span.attributes.get("stepstream.step_index")
        if told is not None:
            told = whole(told, 31)
        place = self._places.of_span(span.trace_id, span.span_id)
        if known is None:
            # Of a conversation that goes on, earlier steps may have been counted by a gateway that has stopped since:
            # the answers in the prompt tell how many there were. A gap can be seen; a doubled index would lose a step.
            first = 0 if trajectory_id == trace.trace_id else _answers(call.prompt)
            known = self._places.begin(tenant, trajectory_id, first)
        if told is not None and told >= 0:
            index = told
        elif place is not None and place[0] == trajectory_id:
            index = place[1]
        else:
            index = known.next_index
        known.next_index = max(known.next_index, index + 1)
        return index, known

    def _agent(self, span: Span, inside: str) -> str:
        own = span.attributes.get("gen_ai.agent.name") or span.attributes.get("agent.name")
        return text(own) or inside or text(span.resource.attributes.get("service.name"))

    def _end(self, trace: Trace, runs: list[Run], steps: dict[str, Step]) -> None:
        """Tells the end of each run whose agent's span has ended; a conversation may go on after one."""
        for run in runs:
            last = steps[run.calls[-1].span_id]
            trajectory_id = last["trajectory_id"]
            own = f"{trace.trace_id}-{run.agent.span_id}" if run.agent is not None else ""
            if own and trajectory_id in (trace.trace_id, own):
                last["end"] = "terminated"
                known = self._places.trajectory(last["tenant"], trajectory_id)
                if known is not None:
                    known.said = ()  # hardly anything follows

    def _remember(self, trace: Trace, told: Told) -> None:
        """What spans that are no steps stand for, since evaluations may come later and without them."""
        if told.whole is None:
            return
        self._places.note(trace.trace_id, "", told.whole)
        for span in trace.spans.values():
            about = told.about(span) if span.role is AGENT or span.role is TOOL else None
            if about is not None:
                self._places.note(trace.trace_id, span.span_id, about)


def _answers(prompt: list[Message]) -> int:
    return sum(message["role"] == "assistant" for message in prompt)
