"""Check a model's chat template before it is served: calls, stability over turns, ends of turns, dates."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from stepstream.services.inference.chat_tokenizer import ChatTokenizer, Message, RenderOptions, TemplateError
from stepstream.services.inference.prompt import RequestRendering
from stepstream.services.inference.prompt_splice import CannotContinueError, Prefix, continue_prompt

Level = Literal["ok", "note", "fault"]
CITY = "Bern"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Return the weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
_QUESTION: list[Message] = [{"role": "user", "content": "How is the weather?"}]
_FUNCTION = {"name": "get_weather", "arguments": {"city": CITY}}
_CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call00001", "type": "function", "function": _FUNCTION}],
}
_RESULT: Message = {"role": "tool", "content": "rain", "tool_call_id": "call00001", "name": "get_weather"}
_ANSWER: Message = {"role": "assistant", "content": "It rains."}
_NEXT: Message = {"role": "user", "content": "And tomorrow?"}
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check."""

    check: str
    level: Level
    """`fault`: something will not work; `note`: it works, but differs from what one may expect."""
    text: str


def check_template(tokenizer: ChatTokenizer) -> list[Finding]:
    """Return the findings about a template; never raises for a template that cannot render."""
    rendering = RequestRendering(tokenizer, TOOLS, RenderOptions(now=datetime(2030, 1, 1, tzinfo=UTC)))
    findings = [_tools(rendering)]
    for name, response, following in (
        ("tool cycle", _CALL, _RESULT),
        ("next user turn", _ANSWER, _NEXT),
    ):
        findings.append(_stability(name, rendering, tokenizer, response, following))
    if "think" in tokenizer.template.source(TOOLS):
        findings.append(_reasoning(rendering, tokenizer))
    findings.append(_end_of_turn(rendering, tokenizer))
    findings.append(_date(tokenizer))
    return findings


def written_call(tokenizer: ChatTokenizer) -> str:
    """Return a call as the template writes it, without the end of the turn; raises TemplateError if it cannot."""
    rendering = RequestRendering(tokenizer, TOOLS, RenderOptions())
    text = _written(rendering, _CALL)
    ends = [at for token in tokenizer.end_tokens if (at := text.find(tokenizer.decode([token]))) >= 0]
    return text[: min(ends)] if ends else text


def check_generation_config(folder: Path) -> Finding:
    """Return a note if generation_config.json has sampling parameters, which workers do not apply."""
    file = folder / "generation_config.json"
    config = json.loads(file.read_bytes()) if file.exists() else {}
    found = [f"{name} {config[name]}" for name in _SAMPLING if config.get(name) is not None]
    if not found:
        return Finding("sampling", "ok", "generation_config.json has no sampling parameters")
    return Finding("sampling", "note", f"workers do not apply {', '.join(found)}: send them with each request")


def _tools(rendering: RequestRendering) -> Finding:
    try:
        prompt = rendering.render(_QUESTION, add_generation_prompt=True)
    except TemplateError as error:
        return Finding("tools", "fault", str(error))
    if "get_weather" not in prompt:
        return Finding("tools", "fault", "the template leaves tools out: the model cannot know them")
    try:
        after = rendering.render([*_QUESTION, _CALL, _RESULT], add_generation_prompt=True)
    except TemplateError as error:
        return Finding("tools", "fault", f"the template cannot render a call and its result: {error}")
    if CITY not in after or "rain" not in after:
        return Finding("tools", "fault", "the template leaves calls or their results out of later prompts")
    return Finding("tools", "ok", "the prompt has the tools, calls and results")


def _stability(
    name: str, rendering: RequestRendering, tokenizer: ChatTokenizer, response: Message, following: Message
) -> Finding:
    messages = [*_QUESTION, response, following]
    try:
        before = rendering.render(_QUESTION, add_generation_prompt=True)
        after = rendering.render(messages, add_generation_prompt=True)
        turn = _written(rendering, response)
    except TemplateError as error:
        return Finding(name, "fault", f"cannot be rendered: {error}")
    ids = [*rendering.encode(before), *rendering.encode(_up_to_end(turn, tokenizer))]
    try:
        continue_prompt(Prefix(ids, len(messages) - 1), messages, rendering, tokenizer.end_tokens)
    except CannotContinueError as error:
        return Finding(name, "note", f"begins a new training sequence ({error.reason})")
    stable = after.startswith(before + _up_to_end(turn, tokenizer))
    how = "the text is stable" if stable else "the text changes, and the recorded ids are continued"
    return Finding(name, "ok", f"{how}: one training sequence")


def _reasoning(rendering: RequestRendering, tokenizer: ChatTokenizer) -> Finding:
    kept = []
    for name, response, following in (("tool cycles", _CALL, _RESULT), ("user turns", _ANSWER, _NEXT)):
        messages = [*_QUESTION, response, following]
        try:
            before = rendering.render(_QUESTION, add_generation_prompt=True)
            turn = _up_to_end(_written(rendering, response).split("</think>")[-1].lstrip("\n"), tokenizer)
        except TemplateError as error:
            return Finding("reasoning", "note", str(error))
        thought = "A thought.\n</think>\n\n"
        opening = "" if before.rstrip().endswith("<think>") else "<think>\n"
        ids = rendering.encode(before) + rendering.encode(opening + thought + turn)
        try:
            continue_prompt(Prefix(ids, 2), messages, rendering, tokenizer.end_tokens)
            kept.append(name)
        except CannotContinueError:
            continue
    if len(kept) == 2:
        return Finding("reasoning", "ok", "kept in tool cycles and over user turns")
    where = f"kept in {kept[0]} only" if kept else "left out of later prompts"
    return Finding("reasoning", "note", f"{where}: elsewhere a new training sequence begins")


def _end_of_turn(rendering: RequestRendering, tokenizer: ChatTokenizer) -> Finding:
    ends = {token: tokenizer.decode([token]) for token in sorted(tokenizer.end_tokens)}
    if not ends:
        return Finding("stop ids", "fault", "no file names a token that ends a turn: generation runs to its limit")
    try:
        text = _written(rendering, _ANSWER)
    except TemplateError as error:
        return Finding("stop ids", "fault", str(error))
    _, answer, ending = text.rpartition(str(_ANSWER["content"]))
    if not answer:
        return Finding("stop ids", "fault", "the template leaves the assistant's answers out of later prompts")
    rest = rendering.encode(ending)
    named = ", ".join(f"{token} {text!r}" for token, text in ends.items())
    if not rest:
        return Finding("stop ids", "note", f"the template ends a turn with nothing; the model stops at {named}")
    if rest[0] not in ends:
        end = f"{rest[0]} {tokenizer.token(rest[0])!r}"
        return Finding(
            "stop ids",
            "fault",
            f"the template ends a turn with {end}, the model stops at {named}: add it to eos_token_id in "
            "generation_config.json",
        )
    return Finding("stop ids", "ok", f"the model stops at {named}")


def _date(tokenizer: ChatTokenizer) -> Finding:
    if "strftime_now" not in tokenizer.template.source(TOOLS):
        return Finding("date", "ok", "the template writes no date")
    return Finding("date", "note", "the template writes the date: the trajectory's start, stepstream_started_at_us")


def _written(rendering: RequestRendering, response: Mapping[str, Any]) -> str:
    """Return an assistant's message as the template writes it behind its prompt, up to the end of the text."""
    before = rendering.render(_QUESTION, add_generation_prompt=True)
    after = rendering.render([*_QUESTION, response], add_generation_prompt=False)
    if after.startswith(before):
        return after[len(before) :]
    shared = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(after))
    return after[shared:]


def _up_to_end(text: str, tokenizer: ChatTokenizer) -> str:
    """Return a written turn up to its end-of-turn token, this included."""
    texts: Sequence[str] = [tokenizer.decode([token]) for token in tokenizer.end_tokens]
    ends = [at + len(end) for end in texts if (at := text.find(end)) >= 0]
    return text[: min(ends)] if ends else text
