"""Fill the tables of learner and workers, which no peer's design has: checkpoints, updates and statuses."""

from clickhouse_connect.driver.client import Client

from store_tables.source import VERSIONS, Source

_MODELS, _WORKERS, _UPDATES, _STATUS_S = 4, 8, 20, 2
"""Models, workers of all models, updates of the learner a version, and seconds between two statuses."""
_EACH_VERSION = f"""(
    SELECT number % {VERSIONS} AS v, intDiv(number, {VERSIONS}) AS m, {{begin}} + {{span}} * v / {VERSIONS} AS at_s
    FROM numbers({_MODELS * VERSIONS})
)"""
_STATEMENTS = (
    f"""
INSERT INTO checkpoints (event_id, occurred_at, model, version, parent_version, track, trajectories, updates)
SELECT concat('checkpoint-', toString(m), '-', toString(v)), toDateTime64(at_s, 6, 'UTC'),
    concat('model-', toString(m)), v, if(v = 0, NULL, v - 1), 'stable', 1000, {_UPDATES} * v
FROM {_EACH_VERSION}""",
    f"""
INSERT INTO learner_updates (event_id, occurred_at, model, root, update, learner_version, groups, trajectories, figures)
SELECT concat('update-', toString(m), '-', toString(u)), toDateTime64(at_s + (u - {_UPDATES} * v) * 60, 6, 'UTC'),
    concat('model-', toString(m)), 0, u, v, 8, 64,
    map('effective_share', 0.9, 'tokens', 9000., 'clip_share', 0.01, 'kl', 0.002, 'entropy', 1.5,
        'staleness_mean', 1., 'staleness_max', 3.)
FROM {_EACH_VERSION} ARRAY JOIN range({_UPDATES} * v + 1, {_UPDATES} * (v + 1) + 1) AS u""",
    f"""
INSERT INTO learner_update_lags (occurred_at, model, root, update, least, most, tokens, effective_share, clip_share,
    rejected_share, kl)
SELECT toDateTime64(at_s + (u - {_UPDATES} * v) * 60, 6, 'UTC'), concat('model-', toString(m)), 0, u, least, least,
    2000, 0.9, 0.01, 0.001, 0.002
FROM {_EACH_VERSION} ARRAY JOIN range({_UPDATES} * v + 1, {_UPDATES} * (v + 1) + 1) AS u
ARRAY JOIN range(4) AS least""",
)
_STATUS = f"""
INSERT INTO worker_status (event_id, occurred_at, written_at, worker_id, engine, model, version, newest_version, state)
SELECT concat('status-', toString(w), '-', toString(n)), at, at, concat('worker-', toString(w)), 'vllm',
    concat('model-', toString(w % {_MODELS})), v, v, 'serving'
FROM
(
    SELECT number AS n, toDateTime64({{first}} + {_STATUS_S} * number, 6, 'UTC') AS at,
        toInt32(({{first}} + {_STATUS_S} * number - {{begin}}) * {VERSIONS} / {{span}}) AS v
    FROM numbers({86_400 // _STATUS_S})
)
ARRAY JOIN range({_WORKERS}) AS w"""


def fill_fleet(client: Client, source: Source) -> None:
    """Insert checkpoints and updates of all versions, and the status that each worker sends for all days."""
    begin, span = int(source.since.timestamp()), source.days * 86_400
    for statement in _STATEMENTS:
        client.command(statement.format(begin=begin, span=span))
    for day in range(source.days):
        client.command(_STATUS.format(begin=begin, span=span, first=begin + 86_400 * day))
