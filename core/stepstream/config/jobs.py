"""The stream jobs on the way from a step to its label and its row.

The jobs that have steps and trajectories judged.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from stepstream.config.base import Section


class JobsSettings(Section):
    """The stream jobs."""

    state: Path | None = Field(None, description="Folder of the jobs' RocksDB state; default: DATA/state.")
    batch: int = Field(500, ge=1, description="Most records that a job takes at once.")
    within_s: float = Field(0.01, gt=0, description="Longest wait, in seconds, to fill a batch.")
    dead_letter_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of dead letters in the last 1,000 records at which a job stops loudly; where one tenant "
        "alone is to blame, it names that tenant in its log and goes on.",
    )


class GovernSettings(Section):
    """What makes a record safe to learn from."""

    max_event_bytes: int = Field(900_000, ge=1_000, description="Largest record in bytes; larger: dead letter.")
    max_future_s: float = Field(300.0, ge=0, description="How far ahead of now, in seconds, an event's time may be.")
    dedup_days: int = Field(7, ge=1, description="Days, by an event's own time, for which its id is remembered.")
    pseudonym_key: SecretStr = Field(
        SecretStr(""),
        description="Secret behind the pseudonyms of redacted values; empty: a random one kept in DATA/secrets.",
    )


class InspectSettings(Section):
    """The sampled search for names of people; how much of a tenant's steps is searched, its policy says."""

    model: str = Field("", description="spaCy model that finds names: an installed package, or a folder; empty: none.")


class LabelSettings(Section):
    """Closing and labelling trajectories."""

    idle_timeout_s: float = Field(
        600.0,
        gt=0,
        description="Seconds without a step or feedback after which a trajectory is closed as an event.",
    )
    end_grace_s: float = Field(
        30.0, gt=0, description="Seconds to wait for missing steps after a trajectory's end was told."
    )
    reward_spec: Path | None = Field(
        None, description="TOML file of the reward specification; default: the outcome alone."
    )
    keep_days: int = Field(30, ge=1, description="Days for which a closed trajectory is kept for late feedback.")


class CurateSettings(Section):
    """The job that caps near-duplicates, for tenants whose policy has a cap."""

    history_days: float = Field(
        7.0, gt=0, description="Days of labels that are read again at a start; a tenant's window lies within them."
    )


class AlarmsSettings(Section):
    """When the job `watch` raises an alarm: a rewarded component rose while a guard fell."""

    window: int = Field(
        64,
        ge=8,
        description="Fewest groups of attempts (a trajectory without a group counts as one) in each of the windows "
        "that are compared.",
    )
    level: float = Field(
        0.05, gt=0, lt=1, description="Chance that a cohort in which nothing changes ever raises an alarm."
    )
    smallest_effect: float = Field(
        0.25, gt=0, description="Smallest change worth an alarm, in standard deviations of a trajectory's value."
    )
    history: int = Field(
        128, ge=2, description="Windows that are looked back on; what an alarm has told for so long is the new normal."
    )


class JudgeSettings(Section):
    """The job that has each step scored by a model, from the user's message that followed it."""

    url: str = Field(
        "", description="Base address of an OpenAI-compatible API, as https://host/v1; empty: nothing is judged."
    )
    model: str = Field("", description="Model that judges.")
    api_key: SecretStr = Field(SecretStr(""), description="Key for it; never printed.")
    agents: list[str] = Field([], description="Agents whose steps are judged; empty: all. Comma-separated.")
    tenants: list[str] = Field([], description="Tenants whose steps are judged; empty: all. Comma-separated.")
    per_minute: float = Field(60.0, gt=0, description="Most questions asked in a minute.")
    timeout_s: float = Field(30.0, gt=0, description="Seconds allowed for one answer.")
    patience_s: float = Field(
        120.0, ge=0, description="Seconds for which a judge that fails is asked again before a step is skipped."
    )


class VerifySettings(Section):
    """The job that has verifiers judge closed trajectories; models that judge are asked as `judge` says."""

    file: Path | None = Field(None, description="Verification file (TOML): which verifier looks at what.")
    sandbox: Literal["strict", "network", "none"] = Field(
        "strict",
        description="What must be sure before an agent's code is run: no network and no files but its own (strict), no "
        "network (network), or nothing (none). Where it cannot be had, nothing is run.",
    )
    parallel: int = Field(4, ge=1, description="Cases that are judged at once.")
    patience_s: float = Field(
        120.0,
        ge=0,
        description="Seconds for which a verifier that cannot work is tried again before a case is skipped.",
    )
    keep_days: int = Field(7, ge=1, description="Days for which a closed trajectory is kept, should a step come late.")
    inference_url: str = Field(
        "http://127.0.0.1:8000",
        description="Base address of the inference worker that serves the process reward model.",
    )
