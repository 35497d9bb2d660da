"""Write the headers by which the gateway knows a trajectory."""

import logging
from urllib.parse import quote

from stepstream.sdk.handle import TrajectoryInfo

log = logging.getLogger(__name__)

MAX_HEADER_CHARS = 256
"""Longest id that the gateway accepts."""


def identity_headers(trajectory_id: str, info: TrajectoryInfo) -> dict[str, str]:
    """Return the headers of a trajectory's calls; one that the gateway would refuse is logged and left out."""
    values = {
        "trajectory": trajectory_id,
        "agent": info.agent,
        "tenant": info.tenant,
        "consent": info.consent,
        "task": info.task_id,
        "group": info.group_id,
        "environment": info.environment,
        "harness": info.harness_version,
        "split": info.split,
        "user": info.user,
        "parent": info.parent_trajectory_id,
        "parent-step": info.parent_step_index,
    }
    texts = {name: str(value) for name, value in values.items() if value not in (None, "")}
    return dict(_header(name, text) for name, text in texts.items() if _is_valid(name, text))


def _is_valid(name: str, value: str) -> bool:
    is_valid = len(value) <= MAX_HEADER_CHARS and value.isprintable()
    if not is_valid:
        log.error(
            "no header for %s: the gateway accepts printable text of at most %d characters", name, MAX_HEADER_CHARS
        )
    return is_valid


def _header(name: str, value: str) -> tuple[str, str]:
    """Return a header that every client sends: values beyond ASCII, or with spaces at their ends, by RFC 8187."""
    if value.isascii() and value == value.strip():
        return f"x-stepstream-{name}", value
    return f"x-stepstream-{name}*", "UTF-8''" + quote(value, safe="")
