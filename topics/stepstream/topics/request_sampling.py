"""Read the sampling parameters of a request, which all protocols share, and its grammar. Pure.

Beside OpenAI's fields these are vLLM's: `top_k`, `min_p`, `repetition_penalty`, `structured_outputs` and the like.
A malformed value counts as absent, since the upstream has to reject it.
"""

from collections.abc import Mapping
from typing import Any

from stepstream.topics.events import Sampling, new_sampling

_THINKING = "thinking_token_budget"
"""Number of tokens of reasoning, after which vLLM forces the tokens that end it; -1: no limit."""
_BIASES = ("logit_bias", "allowed_token_ids", "bad_words", "logits_processors", "min_tokens", _THINKING)
"""Fields that add to the logits of some tokens, exclude tokens or force them."""
_GUIDED = {
    # field of `structured_outputs`, and with the prefix `guided_` of a request: constraint
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "json_object": "json_object",
    "structural_tag": "grammar",
}
_GUIDED_FIELDS = frozenset({"structured_outputs", *(f"guided_{name}" for name in _GUIDED)})
_FORMATS = {"json_schema": "json_schema", "json_object": "json_object", "structural_tag": "grammar"}
"""Constraint by the type of `response_format`."""
_ABSENT = (None, False)
_FREE_CHOICES = (None, "auto", "none")
_LARGEST = 1e300
"""Largest absolute value of a parameter: larger integers are no floats."""

Request = Mapping[str, Any]


def read_sampling(request: Request, *, max_tokens: Any, constraint: str, seed: Any = None) -> Sampling:
    """Return the sampling of a request.

    Args:
        request: its fields.
        max_tokens: its token limit, whose name depends on the protocol.
        constraint: its grammar, see `constraint_of`; empty: none.
        seed: its seed.
    """
    limit, start = number(max_tokens), number(seed)
    top_k = _float(request, "top_k", 0.0)
    return new_sampling(
        temperature=_float(request, "temperature", 1.0),
        top_p=_float(request, "top_p", 1.0),
        max_tokens=None if limit is None or abs(limit) >= 2**31 else int(limit),
        seed=None if start is None or abs(start) >= 2**63 else int(start),
        top_k=int(top_k) if 0 < top_k < 2**31 else 0,  # vLLM: -1 and 0 keep all tokens
        min_p=_float(request, "min_p", 0.0),
        presence_penalty=_float(request, "presence_penalty", 0.0),
        frequency_penalty=_float(request, "frequency_penalty", 0.0),
        repetition_penalty=_float(request, "repetition_penalty", 1.0),
        logit_bias=not request.keys().isdisjoint(_BIASES) and _has_biases(request),
        constraint=constraint,
    )


def constraint_of(request: Request) -> str:
    """Return the grammar of a chat completion, as recorded in `Sampling.constraint`; empty: none."""
    if constraint := format_constraint(request.get("response_format")):
        return constraint
    if not request.keys().isdisjoint(_GUIDED_FIELDS):
        structured = request.get("structured_outputs")
        for name, constraint in _GUIDED.items():
            given = structured.get(name) if isinstance(structured, dict) else None
            # An empty schema is a grammar too.
            if given not in _ABSENT or request.get(f"guided_{name}") not in _ABSENT:
                return constraint
    return tool_constraint(request.get("tool_choice"))


def tool_constraint(choice: Any) -> str:
    """Return `tool_choice` if a `tool_choice` of OpenAI's forces a call; empty: the model decides."""
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")  # chat completions nest what the Responses API has beside the type
        choice = (allowed if isinstance(allowed, dict) else choice).get("mode")
    return "" if choice in _FREE_CHOICES else "tool_choice"


def format_constraint(output_format: Any) -> str:
    """Return the grammar of an output format by its type, in any protocol; empty: none."""
    kind = output_format.get("type") if isinstance(output_format, dict) else None
    return _FORMATS.get(kind, "") if isinstance(kind, str) else ""


def number(value: Any) -> int | float | None:
    """Return a number of a request; None for another value, which the upstream has to reject."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _has_biases(request: Request) -> bool:
    budget = number(request.get(_THINKING))
    return (budget is not None and budget >= 0) or any(request.get(name) for name in _BIASES if name != _THINKING)


def _float(request: Request, name: str, default: float) -> float:
    given = request.get(name)
    if given is None:
        return default
    value = number(given)
    return default if value is None or not abs(value) <= _LARGEST else float(value)
