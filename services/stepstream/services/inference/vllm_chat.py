"""Add to vLLM's own chat completions what the gateway records: versions, masks and plain logprobs of the tokens.

vLLM renders, samples and parses; its replies have token ids already. This adds `weight_versions` to each choice, and
its sampling mask if requested, writes logprobs as plain numbers where `plain_logprobs` is requested, continues the ids
of `stepstream_prefix`, gives templates the date of `stepstream_started_at_us`, leaves tool calls free of grammars, and
refuses fields that vLLM would ignore and searches, whose tokens are not sampled.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionLogProbs, ChatCompletionResponse
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.serve.engine.protocol import ErrorResponse

from stepstream.services.inference.engine import SamplingMask
from stepstream.services.inference.prompt_splice import CannotContinueError, Prefix
from stepstream.services.inference.request_fields import MASK, MAX_MASK_IDS, RequestError, read_number
from stepstream.services.inference.vllm_mask import MaskReader
from stepstream.services.inference.vllm_prefix import continue_request

ADDITIONS = frozenset({"plain_logprobs", MASK, "stepstream_prefix", "stepstream_started_at_us"})
"""Extra request fields of Stepstream."""
WITHOUT_EFFECT = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
"""OpenAI's fields that change no token of a response."""
NOT_SAMPLED: Mapping[str, Any] = {"use_beam_search": False, "length_penalty": 1.0, "watermarking": False}
"""vLLM's fields whose tokens are not drawn from the recorded distribution, with the values that change nothing.

vLLM ignores `length_penalty` without a beam search, and `watermarking` without a configuration of it.
"""
_FREE_CHOICES = (None, "auto", "none")
"""Values of `tool_choice` that force no call; the gateway records the others as a constraint."""
CLOCK = "strftime_now"
"""Function of chat templates that gives the date; here that of the trajectory's start, for a stable prompt."""


class RecordedChat(OpenAIServingChat):  # type: ignore[misc]
    """vLLM's chat handler with Stepstream's additions."""

    @classmethod
    def of(cls, serving: Any) -> "RecordedChat":
        """Return a handler with the configuration of vLLM's."""
        chat: RecordedChat = object.__new__(cls)
        chat.__dict__.update(serving.__dict__)
        return chat

    async def create_chat_completion(self, request: Any, raw_request: Any = None) -> Any:
        """Answer one request; 400 names a field that vLLM ignores, or that takes other tokens than sampled ones."""
        refused = sorted((request.model_extra or {}).keys() - ADDITIONS - WITHOUT_EFFECT)
        refused += [name for name, neutral in NOT_SAMPLED.items() if getattr(request, name) not in (None, neutral)]
        if refused:
            return self.create_error_response(f"'{refused[0]}' is not supported", param=refused[0])
        request.watermarking = False  # by default it follows the server's configuration
        started = (request.model_extra or {}).get("stepstream_started_at_us")
        if started is not None:
            try:
                clock = datetime.fromtimestamp(started / 1e6, UTC).strftime
            except (TypeError, ValueError, OverflowError, OSError):
                name = "stepstream_started_at_us"
                return self.create_error_response(f"'{name}' must be microseconds since 1970", param=name)
            request.chat_template_kwargs = {**(request.chat_template_kwargs or {}), CLOCK: clock}
        try:
            mask_ids = read_number(request.model_extra or {}, MASK, int, 0, MAX_MASK_IDS) or 0
        except RequestError as error:
            return self.create_error_response(str(error), param=MASK)
        request.mask = MaskReader.of(request, mask_ids, self.model_config.max_logprobs)
        return await super().create_chat_completion(request, raw_request)

    async def render_chat_request(self, request: Any) -> Any:
        """Render the prompt, or continue the recorded ids of the step before.

        vLLM binds the calls of `strict` tools, and all with `parallel_tool_calls=false`, to a grammar while it renders.
        That would move the sampled distribution without a record, so it is undone where the model decides.
        """
        is_free = request.tool_choice in _FREE_CHOICES and request.extract_structured_outputs() is None
        rendered = await super().render_chat_request(request)
        if is_free:
            request.structured_outputs, request._grammar_from_parser = None, False
        field = (request.model_extra or {}).get("stepstream_prefix")
        if field is None or isinstance(rendered, ErrorResponse):
            return rendered
        conversation, prompts = rendered
        try:
            prefix = Prefix.read(field)
        except ValueError as error:
            return self.create_error_response(f"'stepstream_prefix' {error}", param="stepstream_prefix")
        try:
            prompts[0]["prompt_token_ids"] = continue_request(prefix, request, conversation, self.online_renderer)
            request.prefix_answer = {"stepstream_prefix": "splice"}
        except CannotContinueError as error:
            request.prefix_answer = {"stepstream_prefix": "none", "stepstream_prefix_reason": error.reason}
        return rendered

    async def chat_completion_full_generator(
        self, request: Any, result_generator: AsyncIterator[Any], request_id: str, model: str, *args: Any, **kwargs: Any
    ) -> Any:
        """Return a complete reply."""
        fields: dict[int, dict[str, Any]] = {}
        outputs = _recorded(request, result_generator, fields)
        reply = await super().chat_completion_full_generator(
            request, outputs, request_id, self._base(model), *args, **kwargs
        )
        if isinstance(reply, ChatCompletionResponse):
            for choice in reply.choices:
                for name, value in fields.get(choice.index, {}).items():
                    setattr(choice, name, value)
            for name, value in _prefix_answer(request).items():
                setattr(reply, name, value)
        return reply

    async def chat_completion_stream_generator(
        self, request: Any, result_generator: AsyncIterator[Any], request_id: str, model: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[str, None]:
        """Yield the events of a stream; a choice's last chunk has its versions, the first one the prefix's answer."""
        fields: dict[int, dict[str, Any]] = {}
        outputs = _recorded(request, result_generator, fields)
        events = super().chat_completion_stream_generator(
            request, outputs, request_id, self._base(model), *args, **kwargs
        )
        added = _prefix_answer(request)
        async for event in events:
            yield _with_additions(event, fields, added) if added or '"finish_reason":"' in event else event
            added = {}

    def _engine_chat_template_kwargs(self, chat_template_kwargs: dict[str, Any]) -> dict[str, Any]:
        """Leave out the clock, which vLLM cannot send to its engine's process."""
        return {name: value for name, value in chat_template_kwargs.items() if name != CLOCK}

    def _base(self, model: str) -> str:
        """Return the name of the model that an adapter belongs to; a reply names the model, spans the version."""
        return model.rpartition("@")[0] if model in self.models.lora_requests else model

    def _create_chat_logprobs(
        self, token_ids: Sequence[int], top_logprobs: Sequence[Any], *args: Any, **kwargs: Any
    ) -> Any:
        if isinstance(top_logprobs, _Plain):
            values = [position[token].logprob for token, position in zip(token_ids, top_logprobs, strict=True)]
            return ChatCompletionLogProbs(values=values)
        return super()._create_chat_logprobs(token_ids, top_logprobs, *args, **kwargs)


class _Plain(list[Any]):
    """Logprobs of a choice to be written as plain numbers."""


async def _recorded(
    request: Any, outputs: AsyncIterator[Any], fields: dict[int, dict[str, Any]]
) -> AsyncGenerator[Any, None]:
    """Pass on vLLM's outputs; put the added fields of each choice by its index into `fields`, when it is finished."""
    plain = bool(request.logprobs and (request.model_extra or {}).get("plain_logprobs"))
    reader: MaskReader | None = request.mask
    masks: dict[int, SamplingMask] = {}
    if reader is not None:
        request.top_logprobs = reader.answered  # vLLM has the number that it samples with
    async for result in outputs:
        for output in result.outputs:
            if reader is not None and output.logprobs is not None:
                reader.add(masks.setdefault(output.index, SamplingMask([], [])), output.logprobs)
            if output.finish_reason is not None:
                fields[output.index] = {"weight_versions": _spans(output, result.lora_request)}
                if output.index in masks:
                    fields[output.index]["sampling_mask"] = masks[output.index]._asdict()
            if plain and output.logprobs is not None:
                output.logprobs = _Plain(output.logprobs)
        yield result


def _spans(output: Any, adapter: Any) -> list[dict[str, int]]:
    """Return the versions that sampled a response; an adapter named `MODEL@VERSION` samples all of it."""
    spans = output.weight_versions or []
    if adapter is not None:
        end = spans[-1].end if spans else len(output.token_ids)
        return [{"version": int(adapter.lora_name.rpartition("@")[2]), "start": 0, "end": end}]
    return [{"version": int(span.version), "start": span.start, "end": span.end} for span in spans]


def _prefix_answer(request: Any) -> dict[str, str]:
    """Return what a reply says about the request's `stepstream_prefix`; empty: the request has none."""
    return dict((request.model_extra or {}).get("prefix_answer") or {})


def _with_additions(event: str, fields: dict[int, dict[str, Any]], added: dict[str, str]) -> str:
    chunk = orjson.loads(event.removeprefix("data: ")) | added
    for choice in chunk.get("choices", ()):
        if choice.get("finish_reason") is not None:
            choice |= fields.get(choice["index"], {})
    return f"data: {orjson.dumps(chunk).decode()}\n\n"
