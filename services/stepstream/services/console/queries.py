"""Define the page's queries over the tables and views of `stepstream.jobs.clickhouse.migrations`. Pure text.

Queries about one model take the parameter `model`. They return times as milliseconds since the Unix epoch.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Query:
    """A query, and how many seconds its answer stays fresh."""

    sql: str
    fresh_s: float


def _ms(time: str) -> str:
    return f"toUnixTimestamp64Milli(toDateTime64({time}, 3, 'UTC'))"


MODELS = """
SELECT model FROM
(
    SELECT model, max(ended_at) AS newest FROM trajectories GROUP BY model
    UNION ALL
    SELECT model, max(occurred_at) AS newest FROM checkpoints GROUP BY model
)
GROUP BY model ORDER BY max(newest) DESC
"""

QUERIES = {
    "success": Query(
        """
        SELECT split, policy_version AS version, trajectories, outcomes, successes, success_rate AS rate,
            wilson_low AS low, wilson_high AS high
        FROM success_by_policy_version WHERE model = {model:String} ORDER BY split, version
        """,
        1.0,
    ),
    "components": Query(
        """
        SELECT environment, agent, split, reward_spec, policy_version AS version, kind, name, weight,
            sum(m.trajectories) AS trajectories, sum(m.mean * m.trajectories) / trajectories AS mean
        FROM component_means AS m WHERE model = {model:String}
        GROUP BY environment, agent, split, reward_spec, version, kind, name, weight
        ORDER BY environment, agent, split, reward_spec, kind, name, version
        """,
        2.0,
    ),
    "alarms": Query(
        f"""
        SELECT alarm_id, state, agent, split, rising, falling, kind, rising_before, rising_after, falling_before,
            falling_after, since_version, message, {_ms("raised_at")} AS raised_at, {_ms("changed_at")} AS changed_at
        FROM alarms_now WHERE model = {{model:String}} ORDER BY state DESC, raised_at DESC LIMIT 20
        """,
        2.0,
    ),
    "steps": Query(
        """
        WITH toUnixTimestamp(now('UTC')) AS now
        SELECT toInt64(toUnixTimestamp(second)) * 1000 AS at, steps FROM steps_per_second
        WHERE at >= (now - 120) * 1000 AND at < now * 1000
        ORDER BY at WITH FILL FROM toInt64(now - 120) * 1000 TO toInt64(now) * 1000 STEP 1000
        """,
        1.0,
    ),
    "totals": Query(
        """
        SELECT
            (SELECT uniqExact(sipHash64(tenant, source_event_id)) FROM steps) AS steps,
            (SELECT count() FROM trajectories FINAL) AS trajectories
        """,
        5.0,
    ),
    "staleness": Query(
        f"""
        WITH (SELECT max(ended_at) FROM trajectories WHERE model = {{model:String}}) AS newest
        SELECT {_ms("toStartOfInterval(ended_at, INTERVAL 5 SECOND)")} AS at,
            avg(staleness) AS mean, max(staleness) AS max
        FROM trajectory_staleness
        WHERE model = {{model:String}} AND split = 'train' AND ended_at >= newest - INTERVAL 15 MINUTE
        GROUP BY at ORDER BY at
        """,
        3.0,
    ),
    "workers": Query(
        f"""
        SELECT worker_id, engine, model, version, newest_version, state, reason, requests_in_flight,
            {_ms("seen_at")} AS seen_at
        FROM workers ORDER BY worker_id
        """,
        1.0,
    ),
    "checkpoints": Query(
        f"""
        SELECT version, parent_version, track, updates, trajectories, {_ms("occurred_at")} AS at,
            substring(weights_sha256, 1, 12) AS sha256, size_bytes
        FROM checkpoints FINAL WHERE model = {{model:String}} ORDER BY version DESC LIMIT 12
        """,
        1.0,
    ),
    "learner": Query(
        """
        WITH (SELECT max(occurred_at) FROM learner_updates WHERE model = {model:String}) AS newest
        SELECT count() AS updates, sum(arraySum(mapValues(seconds))) AS total_s,
            sum(seconds['train']) / total_s AS train, sum(seconds['wait']) / total_s AS wait,
            sum(seconds['read']) / total_s AS read, sum(seconds['fold']) / total_s AS fold,
            sum(seconds['publish']) / total_s AS publish
        FROM learner_updates FINAL
        WHERE model = {model:String} AND occurred_at >= newest - INTERVAL 10 MINUTE HAVING updates > 0
        """,
        2.0,
    ),
    "trajectories": Query(
        f"""
        SELECT tenant, trajectory_id, task_id, agent, split, version_min, version_max, steps, reward, success,
            trajectory_end, closed_by, revision, {_ms("ended_at")} AS at
        FROM trajectories FINAL WHERE model = {{model:String}} ORDER BY ended_at DESC LIMIT 12
        """,
        3.0,
    ),
    "feedback": Query(
        f"SELECT name, source, events, mean, {_ms('newest')} AS at FROM feedback_counts ORDER BY events DESC LIMIT 20",
        3.0,
    ),
    "dead_letters": Query(
        f"""
        SELECT job, topic, error, records, newest_reason AS reason, {_ms("newest")} AS at
        FROM dead_letter_counts ORDER BY records DESC LIMIT 20
        """,
        3.0,
    ),
}
