"""Test that a spliced prompt continues the recorded ids, or says why it cannot, for every family."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from chat_families import FAMILIES, MESSAGES, TOOLS, Family
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.inference.chat_tokenizer import ChatTokenizer, RenderOptions
from stepstream.services.inference.prompt_splice import REASONS, CannotContinueError, Prefix, continue_prompt

NEW_YEAR = RenderOptions(now=datetime(2030, 1, 1, tzinfo=UTC))
STABLE = [name for name in FAMILIES if name not in ("qwen3", "smollm2")]


@cache
def tokenizer_of(name: str) -> ChatTokenizer:
    return ChatTokenizer(FAMILIES[name].build(Path(mkdtemp())))


@dataclass
class Rendering:
    """One request's template and tokenizer."""

    tokenizer: ChatTokenizer
    tools: list[dict[str, Any]] = field(default_factory=lambda: TOOLS)
    options: RenderOptions = NEW_YEAR

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        return self.tokenizer.template.render(
            [dict(message) for message in messages],
            self.tools,
            add_generation_prompt=add_generation_prompt,
            options=self.options,
        )

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(token_ids)


def rendering_of(family: Family, **changes: Any) -> Rendering:
    tools = changes.pop("tools", TOOLS if family.has_tools else [])
    return Rendering(tokenizer_of(family.name), tools, **changes)


def first_prompt(rendering: Rendering, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    return rendering.encode(rendering.render(messages, add_generation_prompt=True))


def sampled(rendering: Rendering, *pieces: str, ended: bool = True) -> list[int]:
    """Return tokens of a response whose merges differ from the template's: each piece is encoded on its own."""
    ids = [token for piece in pieces for token in rendering.encode(piece)]
    return [*ids, rendering.encode(rendering.tokenizer.template.special["eos_token"])[0]] if ended else ids


def extend(rendering: Rendering, prefix: Prefix, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    return continue_prompt(prefix, messages, rendering, rendering.tokenizer.end_tokens)


def reason(rendering: Rendering, prefix: Prefix, messages: Sequence[Mapping[str, Any]]) -> str:
    with pytest.raises(CannotContinueError) as caught:
        extend(rendering, prefix, messages)
    assert caught.value.reason in REASONS
    return caught.value.reason


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": "abcdefghi", "name": "weather"}


CITIES = st.text(alphabet="aB \"'{}<é😀\n", min_size=1, max_size=6)


@given(name=st.sampled_from(STABLE), cities=st.lists(CITIES, min_size=1, max_size=4), data=st.data())
def test_tool_cycles_keep_every_sampled_token(name: str, cities: list[str], data: st.DataObject) -> None:
    family = FAMILIES[name]
    rendering = rendering_of(family)
    messages: list[dict[str, Any]] = list(MESSAGES)
    prompt = first_prompt(rendering, messages)
    expected = rendering.render(messages, add_generation_prompt=True)
    for city in cities:
        step = data.draw(st.integers(1, 5))
        call = family.tool_call % json.dumps(city, ensure_ascii=data.draw(st.booleans()))
        ended = data.draw(st.booleans())
        pieces = [call[at : at + step] for at in range(0, len(call), step)]
        response = sampled(rendering, *pieces, ended=ended)
        before = rendering.render(messages, add_generation_prompt=True)
        messages += [family.call_message(city), result(city + "!")]
        after = rendering.render(messages, add_generation_prompt=True)
        template_call = rendering.render(messages[:-1], add_generation_prompt=False)
        end = rendering.tokenizer.template.special["eos_token"]
        following = extend(rendering, Prefix([*prompt, *response], len(messages) - 1), messages)
        assert following[: len(prompt) + len(response)] == [*prompt, *response]
        turn_end = template_call.rindex(end)
        assert after.startswith(before)
        expected += rendering.decode(response).removesuffix(end) + after[turn_end:]
        assert rendering.decode(following) == expected
        prompt = following


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("content", ["It is clear.", "a\n\nb ", "1 < 2, 'x'"])
def test_a_next_user_turn_continues(name: str, content: str) -> None:
    rendering = rendering_of(FAMILIES[name], tools=[])
    prompt = first_prompt(rendering, MESSAGES)
    response = sampled(rendering, content)
    messages = [*MESSAGES, {"role": "assistant", "content": content}, {"role": "user", "content": "And Bern?"}]
    following = extend(rendering, Prefix([*prompt, *response], 3), messages)
    assert following[: len(prompt) + len(response)] == [*prompt, *response]
    rest = following[len(prompt) + len(response) :]
    whole = rendering.render(messages, add_generation_prompt=True)
    assert whole.endswith(rendering.decode(rest))
    assert rendering.decode(rest) == whole[whole.rindex(content.strip()) + len(content.strip()) :].lstrip(
        " "
    ).removeprefix(rendering.tokenizer.template.special["eos_token"])


def test_where_the_text_is_stable_the_splice_is_the_rendering() -> None:
    """Sampled as the template writes: the spliced ids are those of the whole text, token for token."""
    for name in STABLE:
        family = FAMILIES[name]
        rendering = rendering_of(family)
        messages = [*MESSAGES, family.call_message("Bern"), result("clear")]
        prompt = first_prompt(rendering, MESSAGES)
        before = rendering.render(MESSAGES, add_generation_prompt=True)
        written = rendering.render(messages[:3], add_generation_prompt=False).removeprefix(before).rstrip("\n")
        following = extend(rendering, Prefix([*prompt, *rendering.encode(written)], 3), messages)
        assert following == first_prompt(rendering, messages), name


def test_a_template_without_calls_continues_by_content() -> None:
    """SmolLM2's own template fails on a message of a call; the recorded ids need not be rendered."""
    family = FAMILIES["smollm2"]
    rendering = rendering_of(family)
    prompt = first_prompt(rendering, MESSAGES)
    response = sampled(rendering, family.tool_call % '"Bern"')
    messages = [*MESSAGES, family.call_message("Bern"), result("clear")]
    with pytest.raises(ValueError, match="cannot render"):
        rendering.render(messages, add_generation_prompt=True)
    following = extend(rendering, Prefix([*prompt, *response], 3), messages)
    assert rendering.decode(following[len(prompt) + len(response) :]) == (
        "\n<|im_start|>tool\nclear<|im_end|>\n<|im_start|>assistant\n"
    )


class TestReasoning:
    """Qwen3 leaves earlier reasoning out at the next user turn, and keeps it while it calls tools."""

    THOUGHT = "<think>\nA city.\n</think>\n\n"

    def first(self, rendering: Rendering, text: str) -> list[int]:
        return [*first_prompt(rendering, MESSAGES), *sampled(rendering, text)]

    @pytest.mark.parametrize("form", ["dropped", "field", "inline"])
    def test_a_tool_cycle_keeps_it(self, form: str) -> None:
        family = FAMILIES["qwen3"]
        rendering = rendering_of(family)
        ids = self.first(rendering, self.THOUGHT + family.tool_call % '"Bern"')
        message = family.call_message("Bern")
        if form == "field":
            message["reasoning_content"] = "A city."
        if form == "inline":
            message["content"] = self.THOUGHT
        messages = [*MESSAGES, message, result("clear")]
        assert extend(rendering, Prefix(ids, 3), messages)[: len(ids)] == ids

    def test_several_turns_of_a_cycle_keep_it_until_the_next_user_turn(self) -> None:
        family = FAMILIES["qwen3"]
        rendering = rendering_of(family)
        messages: list[dict[str, Any]] = list(MESSAGES)
        ids = first_prompt(rendering, messages)
        for city in ("Bern", "Basel", "Genf"):
            ids += sampled(rendering, self.THOUGHT, family.tool_call % json.dumps(city))
            messages += [family.call_message(city), result("clear")]
            following = extend(rendering, Prefix(ids, len(messages) - 1), messages)
            assert following[: len(ids)] == ids
            ids = following
        ids += sampled(rendering, self.THOUGHT + "Clear.")
        messages += [{"role": "assistant", "content": "Clear."}, {"role": "user", "content": "And?"}]
        assert reason(rendering, Prefix(ids, len(messages) - 1), messages) == "reasoning_dropped"

    @pytest.mark.parametrize("form", ["dropped", "inline"])
    def test_the_next_user_turn_does_not(self, form: str) -> None:
        rendering = rendering_of(FAMILIES["qwen3"])
        ids = self.first(rendering, self.THOUGHT + "Clear.")
        content = "Clear." if form == "dropped" else self.THOUGHT + "Clear."
        messages = [*MESSAGES, {"role": "assistant", "content": content}, {"role": "user", "content": "And?"}]
        assert reason(rendering, Prefix(ids, 3), messages) == "reasoning_dropped"

    def test_an_empty_block_of_the_generation_prompt_stays(self) -> None:
        """The template writes it into the prompt without thinking, and leaves it out of earlier turns."""
        family = FAMILIES["qwen3"]
        off = RenderOptions(arguments={"enable_thinking": False})
        rendering = rendering_of(family, options=off)
        messages: list[dict[str, Any]] = list(MESSAGES)
        ids = first_prompt(rendering, messages)
        for city in ("Bern", "Basel"):
            ids += sampled(rendering, family.tool_call % json.dumps(city))
            messages += [family.call_message(city), result("clear")]
            following = extend(rendering, Prefix(ids, len(messages) - 1), messages)
            assert following[: len(ids)] == ids
            ids = following
        ids += sampled(rendering, "Clear.")
        messages += [{"role": "assistant", "content": "Clear."}, {"role": "user", "content": "And?"}]
        assert rendering.decode(extend(rendering, Prefix(ids, len(messages) - 1), messages)[len(ids) :]) == (
            "\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        )
        on = rendering_of(family)
        assert reason(on, Prefix(ids, len(messages) - 1), messages) == "reasoning_dropped"


def test_another_conversation_is_never_continued() -> None:
    family = FAMILIES["llama3"]
    rendering = rendering_of(family)
    prompt = first_prompt(rendering, MESSAGES)
    ids = [*prompt, *sampled(rendering, family.tool_call % '"Bern"')]
    call, more = family.call_message("Bern"), result("clear")
    assert extend(rendering, Prefix(ids, 3), [*MESSAGES, call, more])
    changed_system = [MESSAGES[0] | {"content": "Be brief."}, MESSAGES[1], call, more]
    other_call = {**call, "tool_calls": [{"id": "x", "function": {"name": "population", "arguments": {}}}]}
    tomorrow = rendering_of(family, options=RenderOptions(now=datetime(2030, 1, 2, tzinfo=UTC)))
    assert reason(rendering, Prefix(ids, 3), changed_system) == "prompt_differs"
    assert reason(tomorrow, Prefix(ids, 3), [*MESSAGES, call, more]) == "prompt_differs"
    assert reason(rendering_of(family, tools=TOOLS[:1]), Prefix(ids, 3), [*MESSAGES, call, more]) == "prompt_differs"
    assert reason(rendering, Prefix(ids, 3), [*MESSAGES, other_call, more]) == "turn_differs"
    assert reason(rendering, Prefix(ids, 2), [*MESSAGES, call, more]) == "not_covered"
    assert reason(rendering, Prefix(ids, 5), [*MESSAGES, call, more]) == "not_covered"
    other_end = [*ids[:-1], *rendering.encode("<|eom_id|>")]
    with pytest.raises(CannotContinueError) as caught:
        continue_prompt(
            Prefix(other_end, 3), [*MESSAGES, call, more], rendering, {*rendering.tokenizer.end_tokens, other_end[-1]}
        )
    assert caught.value.reason == "end_of_turn"


def test_ids_of_more_messages_than_the_conversation_has_are_not_continued() -> None:
    rendering = rendering_of(FAMILIES["qwen2_5"], tools=[])
    said = {"role": "assistant", "content": "Clear."}
    longer = [*MESSAGES, said, {"role": "user", "content": "Sure?"}]
    ids = [*first_prompt(rendering, longer), *sampled(rendering, "Clear.")]
    messages = [*MESSAGES, said, {"role": "user", "content": "And?"}]
    assert reason(rendering, Prefix(ids, 3), messages) == "prompt_differs"


def test_tools_that_move_with_the_newest_user_message_begin_a_new_sequence() -> None:
    rendering = rendering_of(FAMILIES["mistral"])
    ids = [*first_prompt(rendering, MESSAGES), *sampled(rendering, "Clear.")]
    messages = [*MESSAGES, {"role": "assistant", "content": "Clear."}, {"role": "user", "content": "And?"}]
    assert reason(rendering, Prefix(ids, 3), messages) == "text_changed"


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"token_ids": [], "messages": 1},
        {"token_ids": [1], "messages": 0},
        {"token_ids": ["a"], "messages": 1},
        {"token_ids": [True], "messages": 1},
        {"token_ids": [1], "messages": 1, "more": 1},
        {"token_ids": [-1], "messages": 1},
    ],
)
def test_a_malformed_prefix_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        Prefix.read(value)


def test_a_template_that_ends_whole_conversations_is_continued(tmp_path: Path) -> None:
    """Phi-3's shape: without a generation prompt the text ends with one more token."""
    FAMILIES["qwen2_5"].build(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% else %}{{ pad_token }}{% endif %}"
    )
    rendering = Rendering(ChatTokenizer(tmp_path), [])
    ids = [*first_prompt(rendering, MESSAGES), *sampled(rendering, "Clear.")]
    messages = [*MESSAGES, {"role": "assistant", "content": "Clear."}, {"role": "user", "content": "And?"}]
    assert extend(rendering, Prefix(ids, 3), messages)[: len(ids)] == ids
