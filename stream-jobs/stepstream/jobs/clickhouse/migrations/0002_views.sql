-- What the console and the demo show. Each is right while duplicates are not merged yet: FINAL where the newest
-- revision counts, distinct keys where an event does.

-- Share of successful trajectories of each policy version (the newest one in a trajectory's responses), with the 95 %
-- Wilson score interval; trajectories without an outcome are counted but are in neither.
CREATE OR REPLACE VIEW success_by_policy_version AS
WITH 1.959963984540054 AS z
SELECT
    model,
    split,
    version_max AS policy_version,
    count() AS trajectories,
    countIf(success IS NOT NULL) AS outcomes,
    countIf(success) AS successes,
    successes / outcomes AS success_rate,
    greatest(0., (success_rate + z * z / (2 * outcomes)
        - z * sqrt(success_rate * (1 - success_rate) / outcomes + z * z / (4 * outcomes * outcomes)))
        / (1 + z * z / outcomes)) AS wilson_low,
    least(1., (success_rate + z * z / (2 * outcomes)
        + z * sqrt(success_rate * (1 - success_rate) / outcomes + z * z / (4 * outcomes * outcomes)))
        / (1 + z * z / outcomes)) AS wilson_high,
    max(ended_at) AS newest
FROM trajectories FINAL
WHERE version_max IS NOT NULL
GROUP BY model, split, policy_version
HAVING outcomes > 0;

-- Steps of each second, by the time at which they happened.
CREATE OR REPLACE VIEW steps_per_second AS
SELECT
    toStartOfSecond(occurred_at) AS second,
    uniqExact(trajectory_id, step_index, event_id) AS steps
FROM steps
GROUP BY second;

-- How far behind the newest published version a trajectory's oldest tokens were when it ended.
CREATE OR REPLACE VIEW trajectory_staleness AS
SELECT
    t.trajectory_id AS trajectory_id,
    t.model AS model,
    t.split AS split,
    t.ended_at AS ended_at,
    t.version_min AS version_min,
    c.version AS newest_version,
    greatest(0, c.version - assumeNotNull(t.version_min)) AS staleness
FROM (SELECT * FROM trajectories FINAL WHERE version_min IS NOT NULL) AS t
ASOF INNER JOIN (SELECT model, version, occurred_at FROM checkpoints FINAL) AS c
    ON t.model = c.model AND t.ended_at >= c.occurred_at;

-- What each worker said last.
CREATE OR REPLACE VIEW workers AS
SELECT
    worker_id,
    max(occurred_at) AS seen_at,
    argMax(engine, (s.occurred_at, event_id)) AS engine,
    argMax(url, (s.occurred_at, event_id)) AS url,
    argMax(model, (s.occurred_at, event_id)) AS model,
    argMax(tuple(version), (s.occurred_at, event_id)).1 AS version,
    argMax(tuple(newest_version), (s.occurred_at, event_id)).1 AS newest_version,
    argMax(state, (s.occurred_at, event_id)) AS state,
    argMax(tuple(reason), (s.occurred_at, event_id)).1 AS reason,
    argMax(requests_in_flight, (s.occurred_at, event_id)) AS requests_in_flight
FROM worker_status AS s
GROUP BY worker_id;

-- The newest version of each model on each track.
CREATE OR REPLACE VIEW latest_checkpoints AS
SELECT
    model,
    track,
    max(version) AS newest,
    argMax(c.occurred_at, c.version) AS published_at,
    argMax(weights_sha256, c.version) AS weights_sha256
FROM checkpoints AS c FINAL
GROUP BY model, track;

-- Feedback that stands: neither retractions nor what they take back.
CREATE OR REPLACE VIEW feedback_counts AS
SELECT
    name,
    source,
    count() AS events,
    avg(value) AS mean,
    max(occurred_at) AS newest
FROM feedback FINAL
WHERE retracts IS NULL AND source_event_id NOT IN (SELECT assumeNotNull(retracts) FROM feedback WHERE retracts IS NOT NULL)
GROUP BY name, source;

CREATE OR REPLACE VIEW dead_letter_counts AS
SELECT
    job,
    topic,
    error,
    count() AS records,
    max(occurred_at) AS newest,
    argMax(reason, d.occurred_at) AS newest_reason
FROM dead_letters AS d FINAL
GROUP BY job, topic, error;
