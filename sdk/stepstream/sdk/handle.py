"""Describe a trajectory: its identity and task, and the handle with which another process continues it. Pure."""

import uuid
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, get_args

import orjson

from stepstream.sdk.messages import id_text
from stepstream.sdk.shared_prefix import PrefixDigest
from stepstream.topics.events import Consent, Track

Id = str | int | uuid.UUID | None
"""An identifier; recorded as text."""
_CHOICES = {"consent": get_args(Consent), "track": get_args(Track)}


@dataclass(frozen=True)
class TrajectoryInfo:
    """Identity and task of a trajectory. The fields are those of the same name in `Step`."""

    agent: str = ""
    tenant: str = ""
    consent: Consent = "none"
    task_id: str = ""
    group_id: str | None = None
    environment: str = ""
    harness_version: str = ""
    split: str = "train"
    track: Track = "stable"
    user: str | None = None
    parent_trajectory_id: str | None = None
    parent_step_index: int | None = None

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Convert ids to texts, and None to the field's default.

        Raises:
            ValueError: unknown consent or track.
        """
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = given.get(field.name)
            if value is not None and field.name != "parent_step_index":
                value = id_text(value)
            values[field.name] = field.default if value is None else value
        for name, choices in _CHOICES.items():
            if values[name] not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not '{values[name]}'")
        return cls(**values)


@dataclass(frozen=True)
class TrajectoryHandle:
    """All that another process needs to continue a trajectory; about 1 KB of JSON, without content of its steps."""

    trajectory_id: str
    """Empty: the SDK is switched off."""
    info: TrajectoryInfo
    """Tenant, person, task and the other fields that all steps share."""
    next_index: int = 0
    """Index of the next step."""
    prefix: PrefixDigest | None = None
    """Digest of the newest step, to store only new content; None: no step."""

    def to_json(self) -> str:
        """Return the handle as JSON."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read the result of `to_json`.

        Raises:
            ValueError: the text is none.
        """
        try:
            raw = orjson.loads(text)
            info, prefix = TrajectoryInfo.of(**raw["info"]), raw["prefix"]
            return cls(
                str(raw["trajectory_id"]),
                info,
                int(raw["next_index"]),
                None if prefix is None else PrefixDigest(**prefix),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no handle of a trajectory: {error}; give the text that `to_json` returned") from error
