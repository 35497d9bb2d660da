"""Play one attempt at a task in tokens, and build its label."""

import random
from dataclasses import dataclass, field

from stepstream.services.fleet.agent import tool_input
from stepstream.services.fleet.environment import Environment, ToolResult, reply, tool_round, user
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.engine import SamplingParams, TokenChunk, VersionSpan
from stepstream.services.inference.tool_parsers import CallLine, ParsedCall
from stepstream.topics import events

MODEL = "demo"
_PARSER = CallLine()


class Renderer:
    """Tokens of the chat template by message; the template is append-only, so a message's tokens do not change."""

    def __init__(self, tokenizer: ChatTokenizer, environment: type[Environment]) -> None:
        self.tokenizer = tokenizer
        self.environment = environment
        self.tools = frozenset(str(tool["function"]["name"]) for tool in environment.tools)
        self._answers: dict[str, list[int]] = {}

    def question(self, text: str) -> list[int]:
        """Return the token ids of the prompt that states a task."""
        return self.tokenizer.prompt_ids([user(text)], self.environment.tools)

    def answer(self, text: str) -> list[int]:
        """Return the token ids that a tool's answer adds."""
        if text not in self._answers:
            before = [user(""), reply("")]
            answered = [*before, tool_round("", "", ToolResult(text))[1]]
            render = self.tokenizer.prompt_ids
            self._answers[text] = render(answered, [])[len(render(before, [])) :]
        return self._answers[text]


@dataclass(frozen=True, slots=True)
class _Response:
    """One sampled response and its start in the context."""

    start: int
    chunk: TokenChunk
    call: ParsedCall | None


@dataclass(slots=True)
class Conversation:
    """One attempt: `prompt` is the model's next input until `respond` returns False."""

    task_id: str
    group_id: str
    trajectory_id: str
    seed: int
    renderer: Renderer
    split: str = "train"
    prompt: list[int] = field(init=False)
    outcome: float = 0.0
    truncated: bool = True
    environment: Environment = field(init=False)
    responses: list[_Response] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.environment = self.renderer.environment(self.task_id)
        self.prompt = self.renderer.question(self.environment.first_message)

    def sampling(self, max_tokens: int) -> SamplingParams:
        """Return the parameters of the next response; the same seed, attempt and step give the same draw."""
        drawn = random.Random(f"{self.seed}/{self.trajectory_id}/{len(self.responses)}").getrandbits(48)
        return SamplingParams(max_tokens, seed=drawn)

    def respond(self, chunk: TokenChunk) -> bool:
        """Act on a complete response as the fleet's agent does; return True if the attempt continues."""
        text = self.renderer.tokenizer.text(chunk.token_ids)
        call = _PARSER.parse(text, self.renderer.tools) if chunk.finish_reason == "stop" else None
        self.responses.append(_Response(len(self.prompt), chunk, call))
        self.prompt = [*self.prompt, *chunk.token_ids]
        if call is None:
            self.outcome, self.truncated = self.environment.answer(text), False
            return False
        result = self.environment.call(call.name, tool_input(call.arguments))
        self.prompt += self.renderer.answer(result.text)
        return len(self.responses) < self.environment.max_steps

    def label(self) -> events.LabeledTrajectory:
        """Return the record of `labeled-trajectories`; its only reward is the outcome, at the last step."""
        last = len(self.responses) - 1
        spans: list[events.SequenceSpan] = []
        steps: list[events.LabeledStep] = []
        for index, response in enumerate(self.responses):
            spans += [_span(response.start, span, index) for span in response.chunk.versions]
            paid = self.outcome if index == last else 0.0
            steps.append(
                events.new_labeled_step(
                    step_index=index,
                    event_id=f"{self.trajectory_id}/{index}",
                    reward=paid,
                    return_to_go=self.outcome,
                    prompt_shared_step=index - 1 if index else None,
                    tool_calls=[
                        events.new_tool_call(call_id="", name=call.name, arguments=call.arguments)
                        for call in (response.call,)
                        if call is not None
                    ],
                    trainable=True,
                )
            )
        versions = [span["version"] for span in spans]
        sampled = [logprob for response in self.responses for logprob in response.chunk.logprobs]
        sequence = events.new_training_sequence(token_ids=self.prompt, spans=spans, logprobs=sampled)
        return events.new_labeled_trajectory(
            event_id=self.trajectory_id,
            occurred_at_us=0,
            trajectory_id=self.trajectory_id,
            revision=1,
            consent="train",
            agent="bench",
            model=MODEL,
            fidelity="token",
            closed_by="end",
            complete=True,
            reward=self.outcome,
            reward_spec="outcome",
            started_at_us=0,
            ended_at_us=0,
            labelled_by="bench",
            task_id=self.task_id,
            group_id=self.group_id,
            environment=self.environment.name,
            split=self.split,
            version_min=min(versions),
            version_max=max(versions),
            end="truncated" if self.truncated else "terminated",
            success=self.outcome == 1.0,
            steps=steps,
            sequences=[sequence],
            trainable=True,
            response_tokens=len(sampled),
        )


def _span(start: int, span: VersionSpan, step: int) -> events.SequenceSpan:
    return events.new_sequence_span(
        start=start + span.start, end=start + span.end, step_index=step, model=MODEL, version=span.version
    )
