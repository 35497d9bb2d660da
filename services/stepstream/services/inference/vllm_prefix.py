"""Continue the recorded token ids of the step before in vLLM's chat, by the algorithm of `prompt_splice`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm.renderers.hf import safe_apply_chat_template
from vllm.renderers.params import merge_kwargs

from stepstream.services.inference.prompt_splice import CannotContinueError, Message, Prefix, continue_prompt


@dataclass(frozen=True, slots=True)
class TemplateRendering:
    """vLLM's template and tokenizer with the tools and arguments of one request; a `prompt_splice.Rendering`."""

    renderer: Any
    """vLLM's `HfRenderer`."""
    options: dict[str, Any]
    """Arguments of `apply_chat_template`."""

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Return the conversation's text; raises ValueError if the template cannot render it."""
        options = self.options | {"tokenize": False, "add_generation_prompt": add_generation_prompt}
        renderer = self.renderer
        return str(safe_apply_chat_template(renderer.model_config, renderer.get_tokenizer(), list(messages), **options))

    def encode(self, text: str) -> list[int]:
        """Return the tokens of text that spells its special tokens out."""
        return list(self.renderer.get_tokenizer().encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, with special tokens spelled out."""
        return str(self.renderer.get_tokenizer().decode(list(token_ids), skip_special_tokens=False))


def continue_request(prefix: Prefix, request: Any, conversation: list[Any], online: Any) -> list[int]:
    """Return the token ids of a request's prompt, which begin with the recorded ones.

    Args:
        prefix: the ids of the step before.
        request: vLLM's `ChatCompletionRequest`.
        conversation: its messages in the form of chat templates, as vLLM parsed them.
        online: vLLM's `OnlineRenderer`.

    Raises:
        CannotContinueError: the conversation must be rendered as a whole.
    """
    without_tools = request.tool_choice == "none" and online.exclude_tools_when_tool_choice_none
    tools = None if request.tools is None or without_tools else [tool.model_dump() for tool in request.tools]
    params = request.build_chat_params(online.chat_template, online.chat_template_content_format).with_defaults(
        merge_kwargs(online.default_chat_template_kwargs, {"tools": tools})
    )
    rendering = TemplateRendering(online.renderer, params.get_apply_chat_template_kwargs())
    try:
        return continue_prompt(prefix, conversation, rendering, _end_tokens(online))
    except CannotContinueError:
        raise
    except Exception as error:  # a template may fail in any way on a mark
        raise CannotContinueError("unrenderable") from error


def _end_tokens(online: Any) -> frozenset[int]:
    """Return the tokens at which the model ends a turn."""
    ends = online.model_config.try_get_generation_config().get("eos_token_id")
    ids = {online.renderer.get_tokenizer().eos_token_id, *(ends if isinstance(ends, list) else [ends])}
    return frozenset(token for token in ids if token is not None)
