"""Name model calls in `Step.call_ids`.

The gateway writes the names; it and `govern` recognise two records of one call by them.
"""

_RESPONSE = "response:"
_SPAN = "span:"


def response_name(response_id: str) -> str:
    """Return the name of the call that the provider answered with this id."""
    return _RESPONSE + response_id


def span_name(trace_id: str, span_id: str) -> str:
    """Return the name of the call of a span."""
    return f"{_SPAN}{trace_id}/{span_id}"


def is_response_name(name: str) -> bool:
    """Return True for a name by a response's id: servers without ids often send a constant, which names no call."""
    return name.startswith(_RESPONSE)
