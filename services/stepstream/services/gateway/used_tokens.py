"""Count the tokens of a call. Pure."""

from stepstream.services.gateway.errors import UpstreamDied, UpstreamSilent
from stepstream.services.gateway.protocols.base import Answer

_BYTES_PER_TOKEN = 4
"""Of text whose tokens nobody counted."""
_MAY_HAVE_RUN = frozenset(
    {UpstreamDied.type, UpstreamSilent.type, "client_disconnected", "gateway_stopped", "incomplete_stream"}
    | {"malformed_response"}
)
"""Errors after which the upstream may have used tokens without reporting them."""


def used_tokens(body: bytes, answer: Answer) -> tuple[int, int]:
    """Return the tokens of prompt and response: the upstream's counts, or estimates where it reports none.

    Args:
        body: the request to the upstream.
        answer: its answer; one that failed before the upstream did anything used none.
    """
    prompt, response = answer.usage_prompt_tokens, answer.usage_response_tokens
    if response is None:
        response = sum(_response_tokens(choice) for choice in answer.all_choices())
    if prompt is None:
        has_run = answer.error is None or answer.error in _MAY_HAVE_RUN or response > 0
        prompt = estimated_tokens(len(body)) if has_run else 0
    return prompt, response


def estimated_tokens(size: int) -> int:
    """Return the tokens of a text of so many bytes, rounded up."""
    return -(-size // _BYTES_PER_TOKEN)


def _response_tokens(answer: Answer) -> int:
    message = answer.message
    texts = [message["content"], message["reasoning"], *(call["arguments"] for call in message["tool_calls"])]
    return estimated_tokens(sum(len(text.encode("utf-8", "replace")) for text in texts if text))
