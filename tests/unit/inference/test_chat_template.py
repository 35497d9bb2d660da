"""Test that templates render as transformers renders them, over the families' shapes."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from chat_families import FAMILIES, MESSAGES, TOOLS, Family

from stepstream.services.inference.chat_template import ChatTemplate, RenderOptions, TemplateError
from stepstream.services.inference.chat_tokenizer import ChatTokenizer


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def folder(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return family.build(tmp_path_factory.mktemp(family.name))


def conversation(family: Family) -> list[dict[str, Any]]:
    if not family.has_tools:
        said = {"role": "assistant", "content": "I cannot look."}
        return [*MESSAGES, said, {"role": "user", "content": "Try."}, said]
    result = {"role": "tool", "content": '{"sky": "clear"}', "tool_call_id": "abcdefghi", "name": "weather"}
    done = {"role": "assistant", "content": "  It is clear. "}
    return [*MESSAGES, family.call_message("Zürich"), result, done, {"role": "user", "content": "And Bern?"}]


def test_prompts_equal_those_of_transformers(family: Family, folder: Path) -> None:
    from transformers import AutoTokenizer

    reference: Any = AutoTokenizer.from_pretrained(folder)
    tokenizer = ChatTokenizer(folder)
    messages = conversation(family)
    now = datetime.now(UTC)
    options = RenderOptions(now=now, arguments={"enable_thinking": False, "date_string": "1 Jan 2030"})
    for length in range(2, len(messages) + 1):
        for tools in ([], TOOLS) if family.has_tools else ([],):
            for generate in (True, False):
                expected = reference.apply_chat_template(
                    messages[:length],
                    tools=tools or None,
                    tokenize=False,
                    add_generation_prompt=generate,
                    **options.arguments,
                )
                rendered = tokenizer.template.render(
                    messages[:length], tools, add_generation_prompt=generate, options=options
                )
                assert rendered == expected
                ids = reference(expected, add_special_tokens=False)["input_ids"]
                assert (
                    tokenizer.prompt_ids(messages[:length], tools, add_generation_prompt=generate, options=options)
                    == ids
                )
                assert tokenizer.decode(ids) == expected


def test_the_date_is_the_trajectory_s(tmp_path: Path) -> None:
    template = ChatTemplate.read(FAMILIES["llama3"].build(tmp_path))
    start = datetime(2031, 5, 4, 23, 59, tzinfo=UTC)
    assert "Today Date: 04 May 2031" in template.render(MESSAGES, options=RenderOptions(now=start))
    assert f"Today Date: {datetime.now(UTC):%d %b %Y}" in template.render(MESSAGES)


def test_template_arguments_reach_the_template(tmp_path: Path) -> None:
    template = ChatTemplate.read(FAMILIES["qwen3"].build(tmp_path))
    off = RenderOptions(arguments={"enable_thinking": False})
    assert template.render(MESSAGES, options=off).endswith("<think>\n\n</think>\n\n")
    assert template.render(MESSAGES).endswith("<|im_start|>assistant\n")
    with pytest.raises(TemplateError, match="must not replace messages"):
        template.render(MESSAGES, options=RenderOptions(arguments={"messages": []}))


@pytest.mark.parametrize("form", ["list", "files"])
def test_a_named_template_is_chosen_as_by_transformers(tmp_path: Path, form: str) -> None:
    from transformers import AutoTokenizer

    FAMILIES["qwen2_5"].build(tmp_path)
    sources = {"default": "plain {{ messages|length }}", "tool_use": "tools {{ tools|length }}", "rag": "documents"}
    config = json.loads((tmp_path / "tokenizer_config.json").read_bytes())
    if form == "list":
        (tmp_path / "chat_template.jinja").unlink()
        config["chat_template"] = [{"name": name, "template": text} for name, text in sources.items()]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    else:
        (tmp_path / "chat_template.jinja").write_text(sources["default"])
        (tmp_path / "additional_chat_templates").mkdir()
        for name in ("tool_use", "rag"):
            (tmp_path / "additional_chat_templates" / f"{name}.jinja").write_text(sources[name])
    template = ChatTemplate.read(tmp_path)
    reference: Any = AutoTokenizer.from_pretrained(tmp_path)
    assert template.sources == sources
    for tools in ([], TOOLS):
        expected = reference.apply_chat_template(MESSAGES, tools=tools or None, tokenize=False)
        assert template.render(MESSAGES, tools, add_generation_prompt=False) == expected


def test_templates_without_a_default_are_refused_by_name() -> None:
    template = ChatTemplate({"rag": "a", "tool_use": "b"}, {})
    with pytest.raises(TemplateError, match="rag, tool_use"):
        template.render(MESSAGES)
    assert template.render(MESSAGES, TOOLS) == "b"


def test_the_generation_mark_has_a_scope_of_its_own() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    source = (
        "{% set x = 1 %}{% for m in messages %}{% generation %}{% set x = 2 %}{{ m.content }}{{ loop.index }}"
        "{% endgeneration %}{{ x }}{% endfor %}"
    )
    expected: Any = render_jinja_template([MESSAGES], chat_template=source)
    assert [ChatTemplate({"default": source}, {}).render(MESSAGES)] == expected[0]


def test_every_special_token_is_known_to_the_template(tmp_path: Path) -> None:
    FAMILIES["qwen2_5"].build(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_bytes())
    config |= {"bos_token": {"content": "<b>"}, "extra_special_tokens": {"image_token": "<image>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"sep_token": "<sep>", "eos_token": "<old>"}))
    assert ChatTemplate.read(tmp_path).special == {
        "bos_token": "<b>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "sep_token": "<sep>",
        "image_token": "<image>",
    }
