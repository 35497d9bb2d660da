"""Settings of the stream jobs."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from stepstream.config.base import Section, setting


class JobsSettings(Section):
    """All stream jobs."""

    state: Path | None = setting(None, "Folder of the jobs' RocksDB state; default: `DATA/state`.")
    instance: int = setting(
        1, "Number of this worker among those of one job that share a state folder. Each has a folder of its own.", ge=1
    )
    session_timeout_s: float = setting(
        30.0,
        "Time without a heartbeat after which a worker's partitions get another owner. A transaction may take two "
        "thirds of it. A worker that restarts within it gets its partitions back at once.",
        unit="s",
        ge=1.5,
    )
    snapshots: str = setting(
        "",
        "Folder or fsspec address (as `s3://bucket/prefix`) for snapshots of the state; default: `state-snapshots` "
        "below `learner.checkpoints` if that is an address, else `DATA/state-snapshots`.",
    )
    snapshot_interval_s: float = setting(
        600.0, "Time between two snapshots of a partition's state; 0: none are taken.", unit="s", ge=0
    )
    snapshot_keep: int = setting(
        2, "Newest snapshots of a partition that are kept, beside those of the last hour.", unit="snapshots", ge=1
    )
    missing_history: Literal["stop", "accept"] = setting(
        "stop",
        "What a job does if the log no longer has records that its state needs, and no snapshot has them: `stop` with "
        "an error, or `accept` the loss, count it and go on with the records that are left.",
    )
    batch: int = setting(2_000, "Largest number of records in one batch.", unit="records", ge=1)
    within_s: float = setting(
        0.0,
        "Longest time for which records wait at the broker to fill a batch. A batch has a fixed cost, which more "
        "records share; each job adds up to this time to the latency.",
        unit="s",
        ge=0,
    )
    dead_letter_share: float = setting(
        0.5,
        "Share of dead letters among the last 1,000 records at which a job stops. If one tenant alone causes them, the "
        "job logs the tenant and continues.",
        unit="share",
        gt=0,
        le=1,
    )


class GovernSettings(Section):
    """The `govern` job, which validates, deduplicates and redacts events."""

    max_event_bytes: int = setting(
        900_000, "Largest record. Larger records become dead letters.", unit="bytes", ge=1_000
    )
    max_future_s: float = setting(
        300.0, "Largest difference by which an event's time may be ahead of the clock.", unit="s", ge=0
    )
    dedup_days: int = setting(
        7, "Time to remember an event's id for deduplication, by the event's own time.", unit="days", ge=1
    )
    max_events: int = setting(
        50_000_000,
        "Largest number of events of a partition that are remembered, and of trajectories whose person is. The oldest "
        "are forgotten: a late copy of one is governed again.",
        unit="events",
        ge=1,
    )
    pseudonym_key: SecretStr = setting(
        SecretStr(""),
        "Secret behind the pseudonyms of redacted values; empty: a random one, created once in `DATA/secrets`.",
    )


class InspectSettings(Section):
    """The `inspect` job, which searches sampled steps for names of people. Each tenant's policy sets the sample."""

    model: str = setting("", "spaCy model that finds names: an installed package or a folder; empty: none.")


class IdleTimeoutSettings(Section):
    """The idle timeout of some agents: an entry of `label.idle_timeouts`."""

    agents: list[str] = setting(..., "Names of the agents; `*` matches any characters.", min_length=1)
    idle_timeout_s: float = setting(..., "As `label.idle_timeout_s`, for these agents.", unit="s", gt=0)


class LabelSettings(Section):
    """The `label` job, which closes and labels trajectories."""

    idle_timeout_s: float = setting(
        7_200.0,
        "Time without a step or feedback after which the job closes a trajectory whose end was not reported. A later "
        "step reopens it.",
        unit="s",
        gt=0,
    )
    idle_timeouts: list[IdleTimeoutSettings] = setting(
        [],
        "Idle timeouts of agents that need another one. The first entry whose `agents` match counts. JSON in the "
        "environment.",
    )
    end_grace_s: float = setting(
        30.0, "Time to wait for missing steps after the end of a trajectory was reported.", unit="s", gt=0
    )
    reward_spec: Path | None = setting(
        None, "TOML file of the reward specification; default: the outcome is the only component."
    )
    keep_days: int = setting(
        30,
        "Time to keep a closed trajectory for late feedback, and feedback whose steps have not come.",
        unit="days",
        ge=1,
    )
    max_steps: int = setting(20_000, "Largest number of steps of a trajectory. Later steps become dead letters.", ge=1)
    max_feedback: int = setting(
        20_000, "Largest number of feedback events of a trajectory. Further ones become dead letters.", ge=1
    )
    max_trajectories: int = setting(
        1_000_000,
        "Largest number of closed trajectories that `label` keeps of a partition; `verify` and `measure` keep as many, "
        "open ones included, and `inspect` as many held ones. The oldest make room. Later events of these begin a new "
        "one.",
        ge=1,
    )
    max_orphans: int = setting(
        100_000,
        "Largest number of trajectories of a partition with feedback and without steps. The oldest make room for new "
        "ones, and their feedback becomes dead letters.",
        ge=1,
    )

    def idle_timeout_of(self, agent: str) -> float:
        """Return the idle timeout of an agent's trajectories, in seconds."""
        for entry in self.idle_timeouts:
            if any(fnmatchcase(agent, pattern) for pattern in entry.agents):
                return entry.idle_timeout_s
        return self.idle_timeout_s


class CurateSettings(Section):
    """The `curate` job, which limits near-duplicates for tenants whose policy has a cap."""

    history_days: float = setting(
        7.0,
        "Age of labels that the job reads again at start, and of its decisions. No tenant's window may be longer.",
        unit="days",
        gt=0,
    )
    max_decisions: int = setting(
        1_000_000, "Largest number of decisions in memory, about 250 bytes each; the oldest are forgotten.", ge=1
    )


class AlarmsSettings(Section):
    """The `watch` job, which raises an alarm when a rewarded component rises while a guard falls."""

    window: int = setting(
        64,
        "Fewest groups of attempts in each of the two compared windows. A trajectory without a group counts as one.",
        unit="groups",
        ge=8,
    )
    level: float = setting(
        0.05, "Probability that an unchanging cohort ever raises an alarm.", unit="probability", gt=0, lt=1
    )
    smallest_effect: float = setting(
        0.25,
        "Smallest change that raises an alarm, relative to a trajectory's value.",
        unit="standard deviations",
        gt=0,
    )
    history: int = setting(
        128,
        "Windows that the job compares with. An alarm that lasts longer becomes the new normal.",
        unit="windows",
        ge=2,
    )


class JudgeSettings(Section):
    """The `judge` job: a model scores each step from the user's next message."""

    url: str = setting(
        "", "Base address of an OpenAI-compatible API, as `https://host/v1`; empty: the job judges nothing."
    )
    model: str = setting("", "Model that judges.")
    api_key: SecretStr = setting(SecretStr(""), "API key for the judge; never printed.")
    agents: list[str] = setting([], "Agents whose steps are judged, separated by commas; empty: all.")
    tenants: list[str] = setting([], "Tenants whose steps are judged, separated by commas; empty: all.")
    per_minute: float = setting(60.0, "Rate limit of calls to the judge.", unit="calls per minute", gt=0)
    parallel: int = setting(8, "Calls at the same time for the steps of one batch.", unit="calls", ge=1)
    timeout_s: float = setting(30.0, "Timeout of one call.", unit="s", gt=0)
    patience_s: float = setting(120.0, "Time to retry a failing judge before the job skips a step.", unit="s", ge=0)
    max_steps: int = setting(
        1_000_000,
        "Largest number of steps of a partition that wait for the user's next message. The oldest are forgotten, and "
        "not judged.",
        unit="steps",
        ge=1,
    )


class VerifySettings(Section):
    """The `verify` job, which runs verifiers on closed trajectories. Verifiers that ask a model use `judge`."""

    file: Path | None = setting(None, "Verification file (TOML), which assigns verifiers to environments and agents.")
    sandbox: Literal["strict", "network", "none"] = setting(
        "strict",
        "Isolation required to run an agent's code: no network and no other files (`strict`), no network (`network`), "
        "or none. If the machine cannot provide it, no code runs.",
    )
    parallel: int = setting(4, "Cases judged at the same time.", unit="cases", ge=1)
    patience_s: float = setting(
        120.0, "Time to retry an unavailable verifier before the job skips a case.", unit="s", ge=0
    )
    keep_days: int = setting(7, "Time to keep a trajectory after its newest event, closed or not.", unit="days", ge=1)
    inference_url: str = setting(
        "http://127.0.0.1:8000", "Base address of the inference worker that serves the process reward model."
    )
