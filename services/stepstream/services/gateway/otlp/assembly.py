"""Assemble a trace's steps and feedback: each call's step, its tools, and its parent trajectory.

No clock and no I/O; `SpanIndex` is the only state. A record's id derives from tenant, trace, span and kind, so a span
that is sent twice gives one event. `fast_path` and `fast_steps` handle the most common traces; this path handles all.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from stepstream.services.gateway.context.carried_calls import call_ids
from stepstream.services.gateway.otlp.attributes import integer, text
from stepstream.services.gateway.otlp.calls import Call, call_of, tool_definitions_of, tools_hash_of
from stepstream.services.gateway.otlp.evaluations import TraceSubjects, feedback_of, owner_of
from stepstream.services.gateway.otlp.identity import Defaults, Identities, Identity
from stepstream.services.gateway.otlp.messages import encode_message, shared_prefix
from stepstream.services.gateway.otlp.span_index import SpanIndex, Trajectory
from stepstream.services.gateway.otlp.spans import AGENT, TOOL, Span
from stepstream.services.gateway.otlp.tool_spans import attach
from stepstream.services.gateway.otlp.trace import Run, Trace, name_of, runs_of
from stepstream.topics.catalogue import FEEDBACK, STEPS
from stepstream.topics.events import Message, Step, new_message, new_sampling, new_step
from stepstream.topics.ids import derived_id

JOB = "otlp@1"
EMPTY_STEP = new_step(
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
"""Template of every step; never change its lists."""


class AssembledRecord(NamedTuple):
    """One record to publish."""

    topic: str
    key: str
    record: Any
    headers: Mapping[str, str] | None = None


class Assembler:
    """Assembles records, one trace at a time."""

    def __init__(self, producer: str, span_index: SpanIndex) -> None:
        """Set the program that writes the events, for example `gateway-otlp/0.1.0`."""
        self._producer = producer
        self._span_index = span_index

    def records(self, trace: Trace, defaults: Defaults) -> list[AssembledRecord]:
        """Return the steps and the feedback of a trace.

        Args:
            trace: its spans and log records.
            defaults: identity for spans without one.
        """
        calls = trace.calls()
        steps: dict[str, Step] = {}
        records = []
        if len(calls) == 1 and len(trace.spans) == 1:
            runs = [Run(None, calls)]  # a single call, as most services send
        else:
            runs = runs_of(trace, calls) if calls else []
        names: dict[int, str] = {}
        base = ""
        identities = Identities(trace, defaults)
        for run in runs:
            base = base or identities.of(run.calls[0]).conversation or trace.trace_id
            name = self._name(trace, run, base)
            names[id(run)] = name
            parent = self._caller_of(trace, run, names, steps) if run.parent is not None else (None, None)
            agent = name_of(run.agent.attributes) if run.agent is not None else ""
            for span in run.calls:
                step = self._step(trace, run, span, name, agent, parent, identities.of(span), defaults)
                steps[span.span_id] = step
                context = {"traceparent": f"00-{span.trace_id}-{span.span_id}-01"}
                records.append(AssembledRecord(STEPS, step["trajectory_id"], step, context))
        tools: dict[str, tuple[Step, str]] = {}
        if len(trace.spans) > len(calls):
            tools = attach(trace, runs, steps)
            self._mark_ended(trace, runs, steps)
        subjects = TraceSubjects(trace, runs, steps, tools)
        self._add_subjects(trace, subjects, defaults.tenant)
        for feedback in feedback_of(trace, subjects, self._span_index, defaults, JOB):
            feedback["producer"] = self._producer
            records.append(AssembledRecord(FEEDBACK, feedback["trajectory_id"], feedback))
        return records

    def _name(self, trace: Trace, run: Run, base: str) -> str:
        if run.parent is None or run.agent is None:
            return base
        return f"{trace.trace_id}-{run.agent.span_id}"

    def _caller_of(
        self, trace: Trace, run: Run, names: dict[int, str], steps: dict[str, Step]
    ) -> tuple[str | None, int | None]:
        """Return the trajectory and step that called a run: by the tool's call id, else the last step begun before."""
        assert run.parent is not None
        assert run.agent is not None
        tool = next((s for s in trace.ancestors(run.agent) if s.role is TOOL), None)
        call_id = text(tool.attributes.get("gen_ai.tool.call.id")) if tool is not None else ""
        before: Step | None = None
        for span in run.parent.calls:
            step = steps.get(span.span_id)
            if step is None:  # a cycle of spans: the caller comes later
                continue
            if call_id and any(call["call_id"] == call_id for call in step["response"]["tool_calls"]):
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
        attributes = span.attributes
        response_id = text(attributes.get("gen_ai.response.id"))
        names = call_ids(response_id, span.trace_id, span.span_id, *_spans_below(trace, span))
        carried = self._span_index.carried_step(defaults.tenant, names)
        if carried is not None:
            trajectory_id = carried[0]
        index, trajectory = self._index(trace, span, call, defaults.tenant, trajectory_id, carried)
        is_repeated = index < trajectory.next_index - 1
        error = span.error
        shared, known_tools_hash = 0, 0
        # Some instrumentations list an agent's tools once, for all of its calls.
        tool_definitions = call.tool_definitions or (
            tool_definitions_of(run.agent.attributes) if run.agent is not None else ""
        )
        if not is_repeated:
            prompt = [encode_message(message) for message in call.prompt]
            shared = shared_prefix(prompt, trajectory.messages)
            known_tools_hash = trajectory.tools_hash if shared else 0
            trajectory.messages = [*prompt, encode_message(call.response)] if error is None else ()
            trajectory.tools_hash = tools_hash_of(tool_definitions)
        step = EMPTY_STEP.copy()
        step.update(identity.fields)  # type: ignore[typeddict-item]
        self._span_index.add_step(span.trace_id, span.span_id, (trajectory_id, index, owner_of(step)), response_id)
        step["event_id"] = derived_id(JOB, span.trace_id, span.span_id, "step", tenant=defaults.tenant)
        step["occurred_at_us"] = span.start_ns // 1000
        step["producer"] = self._producer
        step["trajectory_id"] = trajectory_id
        step["step_index"] = index
        if attributes.get("stepstream.step_index") is None:
            step["counted_by"] = self._span_index.count
        step["parent_trajectory_id"] = identity.parent_trajectory_id or parent[0]
        step["parent_step_index"] = parent[1]
        step["agent"] = self._agent(span, agent) or defaults.agent
        step["call_ids"] = names
        step["model"] = call.model
        step["prompt_shared_messages"] = shared
        step["messages"] = call.prompt[shared:] if shared else call.prompt
        step["tool_definitions"] = (
            None if tools_hash_of(tool_definitions) == known_tools_hash else tool_definitions or "[]"
        )
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

    def _index(
        self, trace: Trace, span: Span, call: Call, tenant: str, trajectory_id: str, carried: tuple[str, int] | None
    ) -> tuple[int, Trajectory]:
        """Return the step's index and its trajectory, whose counter is then past it.

        `carried`: trajectory and index of the step that the gateway recorded of the call; None: there is none.
        """
        known = self._span_index.trajectory(tenant, trajectory_id)
        stated = span.attributes.get("stepstream.step_index")
        if stated is not None:
            stated = integer(stated, 31)
        position = self._span_index.step_of(tenant, span.trace_id, span.span_id)
        if known is None:
            # A gateway that has stopped since may have counted a conversation's earlier steps. The prompt's answers
            # give their number. A gap is visible; a duplicate index would lose a step.
            first = 0 if trajectory_id == trace.trace_id else _answers(call.prompt)
            known = self._span_index.begin(tenant, trajectory_id, first)
        if carried is not None:
            index = carried[1]
        elif stated is not None and stated >= 0:
            index = stated
        elif position is not None and position[0] == trajectory_id:
            index = position[1]
        else:
            index = known.next_index
        known.next_index = max(known.next_index, index + 1)
        return index, known

    def _agent(self, span: Span, inside: str) -> str:
        own = span.attributes.get("gen_ai.agent.name") or span.attributes.get("agent.name")
        return text(own) or inside or text(span.resource.attributes.get("service.name"))

    def _mark_ended(self, trace: Trace, runs: list[Run], steps: dict[str, Step]) -> None:
        """Mark the end of each run whose agent's span has ended; a conversation may continue after it."""
        for run in runs:
            last = steps[run.calls[-1].span_id]
            trajectory_id = last["trajectory_id"]
            own = f"{trace.trace_id}-{run.agent.span_id}" if run.agent is not None else ""
            if own and trajectory_id in (trace.trace_id, own):
                last["end"] = "terminated"
                known = self._span_index.trajectory(last["tenant"], trajectory_id)
                if known is not None:
                    known.messages = ()  # frees memory: steps rarely follow

    def _add_subjects(self, trace: Trace, subjects: TraceSubjects, tenant: str) -> None:
        """Remember the subjects of agents' and tools' spans for evaluations in later requests."""
        if subjects.whole_trace is None:
            return
        self._span_index.add_subject(tenant, trace.trace_id, "", subjects.whole_trace)
        for span in trace.spans.values():
            subject = subjects.subject_of(span) if span.role is AGENT or span.role is TOOL else None
            if subject is not None:
                self._span_index.add_subject(tenant, trace.trace_id, span.span_id, subject)


def _spans_below(trace: Trace, call: Span) -> list[str]:
    """Return the spans inside a call, as those of HTTP clients, whose ids reach the gateway in `traceparent`."""
    if len(trace.spans) == 1:
        return []
    return [span.span_id for span in trace.spans.values() if span.parent_id and call in trace.ancestors(span)]


def _answers(prompt: list[Message]) -> int:
    return sum(message["role"] == "assistant" for message in prompt)
