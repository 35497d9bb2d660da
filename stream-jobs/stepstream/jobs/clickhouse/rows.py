"""Map records of the log to rows of the ClickHouse tables in `migrations/`. Pure.

`rows(topic, record)` gives the rows of a record, by table, as tuples in the order of `TABLES[table].columns`. Times are
integers: microseconds since the Unix epoch, the unit of DateTime64(6).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import orjson

from stepstream.crypto.sealing import is_erased
from stepstream.jobs.governance.consent import consent_key
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
    TRAINING_DECISIONS,
    TRAJECTORY_STATS,
    WORKER_STATUS,
)

Record = Mapping[str, Any]
Row = tuple[object, ...]
Column = Callable[[Record], object]


@dataclass(frozen=True)
class Table:
    """Table, and the function of each column."""

    name: str
    columns: tuple[str, ...]
    _values: tuple[Column, ...]

    def row(self, record: Record) -> Row:
        """Return the values of a record, in the order of `columns`."""
        return tuple([value(record) for value in self._values])


def table(name: str, plain: str, **columns: Column) -> Table:
    """Define a table: `plain` names the columns that are fields of the record (separated by spaces), `columns` the
    others.
    """
    fields = plain.split()
    values: list[Column] = [itemgetter(field) for field in fields]
    return Table(name, (*fields, *columns), (*values, *columns.values()))


def governed(field: str, otherwise: object) -> Column:
    """Read a field of the record's Governance; `otherwise` if it has none."""

    def value(record: Record) -> object:
        governed = record["governed"]
        return otherwise if governed is None else governed[field]

    return value


def policy_version(pick: Callable[..., int]) -> Column:
    """Read the lowest or highest version of the policy spans, by `min` or `max`; None without a span."""

    def value(record: Record) -> int | None:
        return pick((span["version"] for span in record["policy_spans"]), default=None)

    return value


def source_event_id(record: Record) -> object:
    """Return the id of the event that was governed, or the record's own."""
    governed = record["governed"]
    return record["event_id"] if governed is None else governed["source_event_id"]


def decided_tenant(record: Record) -> object:
    """Return the tenant of a decision; empty: an earlier release decided, which named none."""
    return record["tenant"] or ""


def components(step: Record) -> dict[str, float]:
    """Return the weighted sum of each component of a labelled step, by name."""
    terms: dict[str, float] = {}
    for component in step["components"]:
        name = component["name"]
        terms[name] = terms.get(name, 0.0) + component["value"] * component["weight"]
    return terms


def json(field: str) -> Column:
    """Encode a field as JSON."""
    return lambda record: orjson.dumps(record[field]).decode()


def size(field: str) -> Column:
    """Count the elements of a field."""
    return lambda record: len(record[field])


def of_label(field: str) -> Column:
    """Read a field of the label of a reward component."""
    return lambda term: term["label"][field]


def each(field: str) -> Column:
    """Read a field of every component of a ComponentStats record."""
    return lambda record: [component[field] for component in record["components"]]


_LABEL_OF_COMPONENT = (
    "trajectory_id",
    "revision",
    "reward_spec",
    "reward_spec_version",
    "tenant",
    "environment",
    "agent",
    "model",
    "split",
)


_occurred_at = itemgetter("occurred_at_us")
_trajectory_end = itemgetter("end")

_STEPS = table(
    "steps",
    "event_id trajectory_id step_index producer tenant consent user parent_trajectory_id parent_step_index task_id "
    "group_id agent environment harness_version track split model fidelity finish_reason error duration_ms "
    "first_token_ms cost_usd prompt_shared_step usage_prompt_tokens usage_response_tokens",
    occurred_at=_occurred_at,
    version_min=policy_version(min),
    version_max=policy_version(max),
    shared_tokens=itemgetter("prompt_shared_tokens"),
    prompt_tokens=size("prompt_token_ids"),
    response_tokens=size("response_token_ids"),
    logprob_sum=lambda record: sum(record["response_logprobs"]),
    messages=json("messages"),
    response=json("response"),
    tools=lambda record: [call["name"] for call in record["response"]["tool_calls"]],
    temperature=lambda record: record["sampling"]["temperature"],
    shared_messages=itemgetter("prompt_shared_messages"),
    top_p=lambda record: record["sampling"]["top_p"],
    max_tokens=lambda record: record["sampling"]["max_tokens"],
    seed=lambda record: record["sampling"]["seed"],
    trajectory_end=_trajectory_end,
    source_event_id=source_event_id,
    trainable=governed("trainable", False),
    redactions=governed("redactions", {}),
    flags=governed("flags", []),
    policy_version=governed("policy_version", 0),
)
_FEEDBACK = table(
    "feedback",
    "event_id trajectory_id step_index tool_call_id producer tenant consent user name value category comment "
    "demonstration source retracts last_step_index",
    occurred_at=_occurred_at,
    trajectory_end=_trajectory_end,
    source_event_id=source_event_id,
    redactions=governed("redactions", {}),
    flags=governed("flags", []),
    policy_version=governed("policy_version", 0),
)
_CLOSURES = table(
    "closures",
    "event_id trajectory_id reason last_step_index job components",
    occurred_at=_occurred_at,
    tenant=decided_tenant,
)
_TRAJECTORIES = table(
    "trajectories",
    "event_id trajectory_id revision parent_trajectory_id parent_step_index task_id group_id tenant user consent agent "
    "environment harness_version track split model version_min version_max fidelity closed_by complete success reward "
    "reward_spec reward_spec_version pending flags trainable prompt_tokens response_tokens cost_usd labelled_by",
    occurred_at=_occurred_at,
    trajectory_end=_trajectory_end,
    steps=size("steps"),
    sequences=size("sequences"),
    tool_calls=lambda record: {use["name"]: use["calls"] for use in record["tools"]},
    tool_errors=lambda record: {use["name"]: use["errors"] for use in record["tools"] if use["errors"]},
    started_at=itemgetter("started_at_us"),
    ended_at=itemgetter("ended_at_us"),
)
# Record: a LabeledStep, with the tenant and id of its trajectory and the revision and id of its label.
_TRAJECTORY_STEPS = table(
    "trajectory_steps",
    "tenant trajectory_id revision label_id step_index event_id reward return_to_go version_min version_max "
    "prompt_tokens response_tokens duration_ms error trainable prompt_shared_step",
    components=components,
    tool_calls=size("tool_calls"),
    tool_results=lambda step: sum(call["result"] is not None for call in step["tool_calls"]),
)
# Record: a RewardComponent, with its trajectory as `label`, and `step_index`.
_REWARD_COMPONENTS = table(
    "reward_components",
    "step_index name kind level source value raw_value weight final feedback_event_id",
    label_id=of_label("event_id"),
    policy_version=of_label("version_max"),
    ended_at=of_label("ended_at_us"),
    **{name: of_label(name) for name in _LABEL_OF_COMPONENT},
)
_TRAJECTORY_STATS = table(
    "trajectory_stats",
    "event_id scope key partition version tenant trajectory_id agent model policy_version harness_version split tool "
    "trajectories successes failures truncated steps errors tool_calls prompt_tokens response_tokens reward_sum "
    "duration_ms_sum",
    occurred_at=_occurred_at,
)
_COMPONENT_STATS = table(
    "component_stats",
    "event_id key partition version environment agent model split reward_spec policy_version hour",
    occurred_at=_occurred_at,
    names=each("name"),
    kinds=each("kind"),
    weights=each("weight"),
    trajectories=each("trajectories"),
    totals=each("total"),
    squares=each("squares"),
)
_ALARMS = table(
    "alarms",
    "event_id alarm_id state kind environment agent model split reward_spec rising falling rising_before rising_after "
    "falling_before falling_after trajectories_before trajectories_after p_value threshold baseline_version "
    "since_version until_version message",
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
_WORKER_STATUS = table(
    "worker_status",
    "event_id worker_id engine url model version newest_version state reason requests_in_flight",
    occurred_at=_occurred_at,
)
_CURATION = table(
    "curation", "event_id trajectory_id action reason by", occurred_at=_occurred_at, tenant=decided_tenant
)
_AUDIT = table(
    "governance_audit",
    "event_id trajectory_id source_topic source_event_id tenant policy_version action found job",
    occurred_at=_occurred_at,
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
_TRAINING_DECISIONS = table(
    "training_decisions",
    "event_id trajectory_id revision group_id tenant model root outcome reason learner_version staleness update "
    "checkpoint_version trained_revision partition offset job",
    occurred_at=_occurred_at,
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
        _STEPS,
        _FEEDBACK,
        _CLOSURES,
        _TRAJECTORIES,
        _TRAJECTORY_STEPS,
        _REWARD_COMPONENTS,
        _TRAJECTORY_STATS,
        _COMPONENT_STATS,
        _ALARMS,
        _CHECKPOINTS,
        _WORKER_STATUS,
        _CURATION,
        _AUDIT,
        _POLICIES,
        _REWARD_SPECS,
        _CONSENTS,
        _ERASURES,
        _ERASURE_PROOFS,
        _TRAINING_DECISIONS,
        _LEARNER_UPDATES,
        _LEARNER_UPDATE_LAGS,
        _DEAD_LETTERS,
    )
}

_TABLE_OF_TOPIC = {
    GOVERNED_STEPS: _STEPS,
    GOVERNED_FEEDBACK: _FEEDBACK,
    CLOSURES: _CLOSURES,
    LABELED_TRAJECTORIES: _TRAJECTORIES,
    TRAJECTORY_STATS: _TRAJECTORY_STATS,
    COMPONENT_STATS: _COMPONENT_STATS,
    ALARMS: _ALARMS,
    CHECKPOINTS: _CHECKPOINTS,
    WORKER_STATUS: _WORKER_STATUS,
    CURATION: _CURATION,
    GOVERNANCE_AUDIT: _AUDIT,
    POLICIES: _POLICIES,
    REWARD_SPECS: _REWARD_SPECS,
    CONSENTS: _CONSENTS,
    ERASURES: _ERASURES,
    ERASURE_PROOFS: _ERASURE_PROOFS,
    TRAINING_DECISIONS: _TRAINING_DECISIONS,
    LEARNER_UPDATES: _LEARNER_UPDATES,
    DEAD_LETTERS: _DEAD_LETTERS,
}
TOPICS = tuple(_TABLE_OF_TOPIC)
"""Topics whose records become rows."""


def rows(topic: str, record: Record) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a record, as (name of the table, values in the order of its columns).

    The record of an erased person has no rows, so that a replay does not restore deleted rows. Nor has the record of a
    redrive, which is no rejection.

    Raises:
        KeyError: a topic that is not in `TOPICS`.
    """
    written = _TABLE_OF_TOPIC[topic]
    if is_erased(record) or (written is _DEAD_LETTERS and record["redrives"] is not None):
        return
    yield written.name, written.row(record)
    if written is _TRAJECTORIES:
        of_trajectory = {name: record[name] for name in ("tenant", "trajectory_id", "revision")} | {
            "label_id": record["event_id"]
        }
        for step in record["steps"]:
            yield _TRAJECTORY_STEPS.name, _TRAJECTORY_STEPS.row({**step, **of_trajectory})
            for term in step["components"]:
                of_step = {**term, "step_index": step["step_index"], "label": record}
                yield _REWARD_COMPONENTS.name, _REWARD_COMPONENTS.row(of_step)
    elif written is _LEARNER_UPDATES:
        of_update = {name: record[name] for name in ("occurred_at_us", "model", "root", "update")}
        for lag in record["lags"]:
            yield _LEARNER_UPDATE_LAGS.name, _LEARNER_UPDATE_LAGS.row({**lag, **of_update})
