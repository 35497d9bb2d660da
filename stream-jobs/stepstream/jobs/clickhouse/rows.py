"""Map records of the log to rows of the ClickHouse tables in `migrations/`. Pure.

`rows` gives the rows of a record, by table, as tuples in the order of `TABLES[table].columns`. Times are
integers: since the Unix epoch, in the unit of their column.
"""

from collections.abc import Iterator
from operator import itemgetter

from stepstream.crypto.sealing import is_erased
from stepstream.jobs.clickhouse import fact_rows
from stepstream.jobs.clickhouse.columns import Record, Row, each, table
from stepstream.jobs.governance.consent import consent_key
from stepstream.topics.alarm_tenant import alarm_tenant
from stepstream.topics.catalogue import (
    ALARMS,
    CHECKPOINTS,
    CLOSURES,
    COMPONENT_STATS,
    CONSENTS,
    CURATION,
    DEAD_LETTERS,
    ERASURE_PROOFS,
    ERASURES,
    GOVERNANCE_AUDIT,
    GOVERNED_FEEDBACK,
    GOVERNED_STEPS,
    LABELED_TRAJECTORIES,
    LEARNER_UPDATES,
    POLICIES,
    REWARD_SPECS,
    ROLLOUTS,
    TRAINING_DECISIONS,
    TRAJECTORY_STATS,
    WORKER_STATUS,
)

_occurred_at = itemgetter("occurred_at_us")

_TRAJECTORY_STATS = table(
    "trajectory_stats",
    "event_id scope key partition version tenant trajectory_id agent model policy_version harness_version split tool "
    "trajectories successes failures truncated steps errors tool_calls prompt_tokens response_tokens reward_sum "
    "duration_ms_sum",
    occurred_at=_occurred_at,
)
_COMPONENT_STATS = table(
    "component_stats",
    "event_id key partition version tenant environment agent model split reward_spec policy_version hour",
    occurred_at=_occurred_at,
    names=each("components", "name"),
    kinds=each("components", "kind"),
    weights=each("components", "weight"),
    trajectories=each("components", "trajectories"),
    totals=each("components", "total"),
    squares=each("components", "squares"),
)
_ALARMS = table(
    "alarms",
    "event_id alarm_id state kind environment agent model split reward_spec rising falling rising_before rising_after "
    "falling_before falling_after trajectories_before trajectories_after p_value threshold baseline_version "
    "since_version until_version message",
    tenant=alarm_tenant,
    occurred_at=_occurred_at,
)
_CHECKPOINTS = table(
    "checkpoints",
    "event_id model version parent_version track uri weights_sha256 updates configuration code_version metrics",
    occurred_at=_occurred_at,
    files=lambda record: [file["path"] for file in record["files"]],
    size_bytes=lambda record: sum(file["size_bytes"] for file in record["files"]),
    trajectories=lambda record: sum(len(update["offsets"]) for update in record["inputs"]),
)
_ROLLOUTS = table(
    "rollouts",
    "event_id model stable_version canary_version canary_share previous_stable_version pinned_versions action reason "
    "author",
    occurred_at=_occurred_at,
)
# Record: a WorkerStatus, with `written_at_us`.
_WORKER_STATUS = table(
    "worker_status",
    "event_id worker_id engine url model version newest_version state reason requests_in_flight",
    occurred_at=_occurred_at,
    written_at=itemgetter("written_at_us"),
)
_POLICIES = table("policies", "event_id tenant version document author", occurred_at=_occurred_at)
_REWARD_SPECS = table(
    "reward_specs", "event_id name version digest document environments agents author", occurred_at=_occurred_at
)
_CONSENTS = table(
    "consents",
    "event_id tenant user agent consent",
    key=lambda record: consent_key(record["tenant"], record["user"], record["agent"]),
    occurred_at=_occurred_at,
)
_ERASURES = table("erasures", "event_id subject tenant requested_by", occurred_at=_occurred_at)
_ERASURE_PROOFS = table(
    "erasure_proofs",
    "event_id request_id tenant subject requested_by version keys_destroyed rows_deleted consents_deleted trajectories",
    occurred_at=_occurred_at,
    requested_at=itemgetter("requested_at_us"),
    erased_until=itemgetter("erased_until_us"),
    records_unreadable=lambda record: sum(one["records"] for one in record["made_unreadable"]),
    records_deleted=lambda record: sum(one["records"] for one in record["deleted"]),
    remaining=lambda record: {one["place"]: one["records"] or 0 for one in record["remaining"]},
)
_LEARNER_UPDATES = table(
    "learner_updates",
    "event_id model root update learner_version groups trajectories figures dropped seconds job",
    occurred_at=_occurred_at,
)
# Record: a LagFigures, with fields of its update.
_LEARNER_UPDATE_LAGS = table(
    "learner_update_lags",
    "model root update least most tokens effective_share clip_share rejected_share kl",
    occurred_at=_occurred_at,
)
_DEAD_LETTERS = table(
    "dead_letters",
    "event_id job topic partition offset value_bytes error reason",
    occurred_at=_occurred_at,
)

TABLES = {
    one.name: one
    for one in (
        fact_rows.STEPS,
        fact_rows.STEP_CONTENTS,
        fact_rows.FEEDBACK,
        fact_rows.CLOSURES,
        fact_rows.TRAJECTORIES,
        _TRAJECTORY_STATS,
        _COMPONENT_STATS,
        _ALARMS,
        _CHECKPOINTS,
        _WORKER_STATUS,
        fact_rows.CURATION,
        fact_rows.AUDIT,
        _ROLLOUTS,
        _POLICIES,
        _REWARD_SPECS,
        _CONSENTS,
        _ERASURES,
        _ERASURE_PROOFS,
        fact_rows.TRAINING_DECISIONS,
        _LEARNER_UPDATES,
        _LEARNER_UPDATE_LAGS,
        _DEAD_LETTERS,
    )
}

_TABLE_OF_TOPIC = {
    GOVERNED_STEPS: fact_rows.STEPS,
    GOVERNED_FEEDBACK: fact_rows.FEEDBACK,
    CLOSURES: fact_rows.CLOSURES,
    LABELED_TRAJECTORIES: fact_rows.TRAJECTORIES,
    TRAJECTORY_STATS: _TRAJECTORY_STATS,
    COMPONENT_STATS: _COMPONENT_STATS,
    ALARMS: _ALARMS,
    CHECKPOINTS: _CHECKPOINTS,
    WORKER_STATUS: _WORKER_STATUS,
    CURATION: fact_rows.CURATION,
    ROLLOUTS: _ROLLOUTS,
    GOVERNANCE_AUDIT: fact_rows.AUDIT,
    POLICIES: _POLICIES,
    REWARD_SPECS: _REWARD_SPECS,
    CONSENTS: _CONSENTS,
    ERASURES: _ERASURES,
    ERASURE_PROOFS: _ERASURE_PROOFS,
    TRAINING_DECISIONS: fact_rows.TRAINING_DECISIONS,
    LEARNER_UPDATES: _LEARNER_UPDATES,
    DEAD_LETTERS: _DEAD_LETTERS,
}
TOPICS = tuple(_TABLE_OF_TOPIC)
"""Topics whose records become rows."""


def rows(topic: str, record: Record, written_us: int | None = None) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a record, as (name of the table, values in the order of its columns).

    The record of an erased person has no rows, so that a replay does not restore deleted rows. Nor has the record of a
    redrive, which is no rejection.

    Args:
        topic: topic of the record.
        record: the decoded record.
        written_us: time at which it was written to the topic, in microseconds since the Unix epoch; None: unknown, so
            that its own time counts.

    Raises:
        KeyError: a topic that is not in `TOPICS`.
    """
    written = _TABLE_OF_TOPIC[topic]
    if is_erased(record) or (written is _DEAD_LETTERS and record["redrives"] is not None):
        return
    if written is _WORKER_STATUS:
        record = {**record, "written_at_us": record["occurred_at_us"] if written_us is None else written_us}
    yield written.name, written.row(record)
    if written is fact_rows.STEPS:
        yield fact_rows.STEP_CONTENTS.name, fact_rows.STEP_CONTENTS.row(record)
    elif written is _LEARNER_UPDATES:
        of_update = {name: record[name] for name in ("occurred_at_us", "model", "root", "update")}
        for lag in record["lags"]:
            yield _LEARNER_UPDATE_LAGS.name, _LEARNER_UPDATE_LAGS.row({**lag, **of_update})
