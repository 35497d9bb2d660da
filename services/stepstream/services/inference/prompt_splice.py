"""Continue the token ids of the step before with only what is new in the conversation.

Rendering a conversation again gives other tokens than those that the model sampled: another JSON spacing of a call,
other merges of characters. The next step would then begin a new training sequence. So the prompt keeps the recorded
ids and adds the rest:

1. Render the conversation with a mark as the content of each assistant turn that the recorded ids cover.
2. Require that the text before each of these turns is what its prompt was then: later messages changed nothing.
3. Require that the recorded ids decode to this text, with the sampled text in the place of each mark.
4. Append the tokens of the text behind the last mark.

If one requirement fails, the caller renders the whole conversation as a new sequence. The prompt never has a token
that is neither recorded nor of the template's own text.

Pure: no engine, no clock. The torch engine's chat front and the plugin of vLLM call `continue_prompt`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

Message = Mapping[str, Any]
Reason = Literal[
    "not_covered", "unrenderable", "text_changed", "prompt_differs", "turn_differs", "reasoning_dropped", "end_of_turn"
]
"""Why recorded ids cannot be continued:

- `not_covered`: the ids do not end with an assistant's message of this conversation;
- `unrenderable`: the template cannot render the conversation with marks;
- `text_changed`: new messages change the text before an earlier turn;
- `prompt_differs`: the ids are not of this conversation, these tools or these arguments of the template;
- `turn_differs`: an assistant's message is not what was sampled;
- `reasoning_dropped`: the template leaves out earlier reasoning now;
- `end_of_turn`: the turn ended with another token than the template writes.
"""
REASONS: tuple[str, ...] = get_args(Reason)
_MARK, _THOUGHT = "zqMARK{}qz", "zqTHOUGHTqz"
_REASONING_ENDS = ("</think>", "[/THINK]")


class Rendering(Protocol):
    """The template of one model with the tools and arguments of one request, and the model's tokenizer."""

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Return the conversation's text; raises ValueError if the template cannot render it."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of text that spells its special tokens out; adds none."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, with special tokens spelled out."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Token ids that the gateway recorded of the step before; the request's field `stepstream_prefix`."""

    token_ids: Sequence[int]
    """Prompt and response of the step before, one after the other."""
    messages: int
    """Number of leading messages that they cover; the last of these is the response."""

    @classmethod
    def read(cls, field: Any) -> "Prefix":
        """Validate a request's field; raises ValueError with its fault."""
        if not isinstance(field, dict) or not set(field) <= {"token_ids", "messages"}:
            raise ValueError("must be an object with 'token_ids' and 'messages'")
        ids, count = field.get("token_ids"), field.get("messages")
        if not isinstance(ids, list) or not ids or not all(type(one) is int and one >= 0 for one in ids):
            raise ValueError("'token_ids' must be a list of at least one token id")
        if type(count) is not int or count < 1:
            raise ValueError("'messages' must be a number of at least 1")
        return cls(ids, count)


class CannotContinueError(Exception):
    """The recorded ids cannot be continued; `reason` is one of `REASONS`."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


@dataclass(frozen=True, slots=True)
class _Marked:
    """A conversation rendered with marks: the text around the turns that the ids cover."""

    prompts: list[str]
    """Text before the first turn, then between two turns; each ends with the turn's own generation prompt."""
    rest: str
    """Text behind the last turn."""
    keeps_reasoning: bool


def continue_prompt(
    prefix: Prefix, messages: Sequence[Message], rendering: Rendering, end_tokens: Collection[int]
) -> list[int]:
    """Return the prompt's token ids, which begin with the recorded ones.

    Args:
        prefix: the ids of the step before.
        messages: the whole conversation, in the form of chat templates.
        rendering: the model's template and tokenizer.
        end_tokens: the tokens at which the model ends a turn.

    Raises:
        CannotContinueError: the conversation must be rendered as a whole.
    """
    count = prefix.messages
    if count > len(messages) or messages[count - 1]["role"] != "assistant":
        raise CannotContinueError("not_covered")
    turns = [index for index in range(count) if messages[index]["role"] == "assistant"]
    recorded = rendering.decode(prefix.token_ids)
    ends = [rendering.decode([token]) for token in end_tokens]
    fault = CannotContinueError("unrenderable")
    has_calls = any(messages[turn].get("tool_calls") for turn in turns)
    for in_calls in (True, False) if has_calls else (False,):
        try:
            marked = _render_marked(messages, turns, rendering, ends, in_calls=in_calls, reasons=False)
            sampled = _sampled(recorded, marked, rendering)
            _check_turns([messages[turn] for turn in turns], sampled, ends)
            if any(end in text for text in sampled for end in _REASONING_ENDS):
                marked = _with_reasoning(messages, turns, rendering, ends, in_calls=in_calls)
            return [*prefix.token_ids, *_rest(prefix.token_ids[-1], marked.rest, rendering, end_tokens)]
        except CannotContinueError as error:
            fault = error if fault.reason == "unrenderable" else fault
    raise fault


def _render(rendering: Rendering, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
    try:
        return rendering.render(messages, add_generation_prompt=add_generation_prompt)
    except ValueError as error:
        raise CannotContinueError("unrenderable") from error


def _with_reasoning(
    messages: Sequence[Message], turns: Sequence[int], rendering: Rendering, ends: Sequence[str], *, in_calls: bool
) -> _Marked:
    """Render as if each turn had reasoning; raises CannotContinueError if the template leaves it out."""
    try:
        marked = _render_marked(messages, turns, rendering, ends, in_calls=in_calls, reasons=True)
    except CannotContinueError as error:
        raise CannotContinueError("reasoning_dropped" if error.reason == "text_changed" else error.reason) from error
    if not marked.keeps_reasoning:
        raise CannotContinueError("reasoning_dropped")
    return marked


def _render_marked(
    messages: Sequence[Message],
    turns: Sequence[int],
    rendering: Rendering,
    ends: Sequence[str],
    *,
    in_calls: bool,
    reasons: bool,
) -> _Marked:
    """Render with marks.

    The generation prompt of a turn is taken as it was: some templates write an empty reasoning block into it and leave
    the block out of earlier turns.

    Args:
        messages: the whole conversation.
        turns: indices of the turns to mark.
        rendering: the template.
        ends: texts that end a turn.
        in_calls: a turn with tool calls keeps them, because some templates require them.
        reasons: each turn has reasoning, marked too.
    """
    marked = list(messages)
    for number, turn in enumerate(turns):
        marked[turn] = _marked_turn(messages[turn], number, in_calls=in_calls, reasons=reasons)
    text = _render(rendering, marked, add_generation_prompt=True)
    places, position = [], 0
    for number, turn in enumerate(turns):
        mark = _MARK.format(number)
        at = text.find(mark, position)
        if at < 0 or text.count(mark) != 1:
            raise CannotContinueError("unrenderable")
        position = at + len(mark)
        if in_calls and messages[turn].get("tool_calls"):
            found = [place for end in ends if (place := text.find(end, position)) >= 0]
            if not found:
                raise CannotContinueError("end_of_turn")
            position = min(found)
        places.append((at, position))
    keeps = text.count(_THOUGHT) == len(turns)
    return _Marked(_prompts(text, marked, turns, places, rendering), text[position:], keeps)


def _prompts(
    text: str,
    marked: Sequence[Message],
    turns: Sequence[int],
    places: Sequence[tuple[int, int]],
    rendering: Rendering,
) -> list[str]:
    """Return the text before each turn; `places` has where each turn's mark begins and where the turn ends in `text`.

    Behind the text before a turn comes its opening, such as the name of the role. Turns of one form have one opening,
    so that the text before most of them is known without rendering it.
    """
    head = _render(rendering, marked[: turns[-1]], add_generation_prompt=False)
    prompt = _render(rendering, marked[: turns[-1]], add_generation_prompt=True)
    ends_whole = not prompt.startswith(head)  # the template ends a conversation with more than its last turn
    head = prompt if ends_whole else head
    generation = prompt[len(head) :]
    openings: list[str] = []
    prompts: list[str] = []
    for number in reversed(range(len(turns))):
        begin = places[number - 1][1] if number else 0
        before = text[begin : places[number][0]]
        opening = next((known for known in openings if before.endswith(known)), None)
        if opening is None:
            if openings:
                head = _render(rendering, marked[: turns[number]], add_generation_prompt=ends_whole)
            if not text.startswith(head) or not begin <= len(head) <= places[number][0]:
                raise CannotContinueError("text_changed")
            opening = text[len(head) : places[number][0]]
            openings = sorted([*openings, opening], key=len, reverse=True)
        prompts.append(before[: len(before) - len(opening)] + generation)
    return prompts[::-1]


def _marked_turn(message: Message, number: int, *, in_calls: bool, reasons: bool) -> Message:
    """Return the turn with a mark in the place of what was sampled, and one in the place of its reasoning."""
    content, thought = message.get("content"), _THOUGHT
    mark = _MARK.format(number)
    fields: dict[str, Any] = {"role": "assistant", "content": mark}
    inline = isinstance(content, str) and any(end in content for end in _REASONING_ENDS)
    if in_calls and message.get("tool_calls"):
        *calls, last = message["tool_calls"]
        last = {**last, "function": {**last["function"], "name": mark}}
        fields = {**message, "tool_calls": [*calls, last]}
        if inline:
            fields["content"] = f"<think>\n{thought}\n</think>\n\n"
    elif inline:
        fields["content"] = f"<think>\n{thought}\n</think>\n\n{mark}"
    if reasons and not inline:
        fields |= {"reasoning_content": thought, "reasoning": thought}
    return fields


def _sampled(recorded: str, marked: _Marked, rendering: Rendering) -> list[str]:
    """Return the text that was sampled in each turn; raises CannotContinueError if the ids are of another text."""
    position, sampled = 0, []
    for number, piece in enumerate(marked.prompts):
        found = _find(recorded, piece, position, rendering)
        if found is None or (number == 0 and found[0] != 0):
            raise CannotContinueError("prompt_differs")
        if number:
            sampled.append(recorded[position : found[0]])
        position = found[1]
    return [*sampled, recorded[position:]]


def _find(recorded: str, piece: str, position: int, rendering: Rendering) -> tuple[int, int] | None:
    """Return where `piece` begins and ends behind `position`; None: it is not there."""
    for text in _spellings(piece, rendering):
        at = recorded.find(text, position)
        if at >= 0:
            return at, at + len(text)
    return None


def _spellings(piece: str, rendering: Rendering) -> Iterator[str]:
    """Yield text as the template wrote it, then as the tokenizer gives it back: some change the first space."""
    yield piece
    yield rendering.decode(rendering.encode(piece))


def _check_turns(turns: Sequence[Message], sampled: Sequence[str], ends: Sequence[str]) -> None:
    """Require that each assistant's message is in what was sampled: its content, and the names of its calls.

    A turn has at most one end, its last token: otherwise the ids cover more messages than the conversation has.
    """
    for message, text in zip(turns, sampled, strict=True):
        if any(end in text.removesuffix(end) for end in ends):
            raise CannotContinueError("prompt_differs")
        content = message.get("content")
        parts = [content.strip()] if isinstance(content, str) else []
        parts += [str(call["function"]["name"]) for call in message.get("tool_calls") or ()]
        if not all(part in text for part in parts):
            raise CannotContinueError("turn_differs")


def _rest(last: int, text: str, rendering: Rendering, end_tokens: Collection[int]) -> list[int]:
    """Return the tokens of the text behind the last turn, without the end of the turn if it was sampled."""
    ids = rendering.encode(text)
    if last not in end_tokens:
        return ids
    if not ids or ids[0] != last:
        raise CannotContinueError("end_of_turn")
    return ids[1:]
