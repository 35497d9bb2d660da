"""Read the versions of tools that a harness pins, from a response of the gateway."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from stepstream.sdk.recorder import log_failure
from stepstream.sdk.trajectory import current_trajectory

HEADER = "x-stepstream-tool-versions"
_TRAJECTORY = "x-stepstream-trajectory"


def tool_versions(response: Any) -> dict[str, str]:
    """Return the pinned version of each tool that a response names; empty: none is pinned.

    In the block of the response's trajectory, `current().tool_versions` has the result from then on. Never raises.

    Args:
        response: response or headers of any HTTP client. A response of the `openai` and `anthropic` clients has its
            headers if it was got by `with_raw_response`; `httpx` passes every response to its event hooks.
    """
    try:
        headers = _headers(response)
        found = dict(parse_qsl(headers.get(HEADER, "")))
        trajectory = current_trajectory()
        if trajectory is not None and headers.get(_TRAJECTORY) == trajectory.id:
            trajectory.tool_versions = found
        return found
    except Exception as error:
        log_failure(error)
        return {}


def _headers(response: Any) -> dict[str, str]:
    """Return headers by their name in lower case; a client's own mapping may distinguish cases."""
    given: Any = getattr(response, "headers", response)
    pairs = given.items() if isinstance(given, Mapping) or hasattr(given, "items") else given
    return {_text(name).lower(): _text(value) for name, value in pairs}


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
