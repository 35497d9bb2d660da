"""The stream jobs on the way from a step to its label and its row."""

from pathlib import Path

from pydantic import Field, SecretStr

from stepstream.config.sections.base import Section


class Jobs(Section):
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


class Govern(Section):
    """What makes a record safe to learn from."""

    max_event_bytes: int = Field(900_000, ge=1_000, description="Largest record in bytes; larger: dead letter.")
    max_future_s: float = Field(300.0, ge=0, description="How far ahead of now, in seconds, an event's time may be.")
    dedup_days: int = Field(7, ge=1, description="Days, by an event's own time, for which its id is remembered.")
    pseudonym_key: SecretStr = Field(
        SecretStr(""),
        description="Secret behind the pseudonyms of redacted values; empty: a random one kept in DATA/secrets.",
    )


class Inspect(Section):
    """The sampled search for names of people; how much of a tenant's steps is searched, its policy says."""

    model: str = Field("", description="spaCy model that finds names: an installed package, or a folder; empty: none.")


class Label(Section):
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


class Curate(Section):
    """The job that caps near-duplicates, for tenants whose policy has a cap."""

    history_days: float = Field(
        7.0, gt=0, description="Days of labels that are read again at a start; a tenant's window lies within them."
    )


class Alarms(Section):
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
