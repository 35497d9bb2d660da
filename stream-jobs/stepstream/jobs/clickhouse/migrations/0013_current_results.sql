-- `stepstream replay` governs events again under the present policies: then one source event has a row for each policy.
-- Counts are of source events, and figures are of the result under the newest policy, as in `label`.

CREATE OR REPLACE VIEW current_steps AS
SELECT * FROM steps FINAL ORDER BY policy_version DESC, event_id DESC LIMIT 1 BY source_event_id;

CREATE OR REPLACE VIEW current_feedback AS
SELECT * FROM feedback FINAL ORDER BY policy_version DESC, event_id DESC LIMIT 1 BY source_event_id;

CREATE OR REPLACE VIEW steps_per_second AS
SELECT
    toStartOfSecond(occurred_at) AS second,
    uniqExact(source_event_id) AS steps
FROM steps
GROUP BY second;

-- Feedback that counts: without retractions and what they take back.
CREATE OR REPLACE VIEW feedback_counts AS
SELECT
    name,
    source,
    count() AS events,
    avg(value) AS mean,
    max(occurred_at) AS newest
FROM current_feedback
WHERE retracts IS NULL
    AND source_event_id NOT IN (SELECT assumeNotNull(retracts) FROM feedback WHERE retracts IS NOT NULL)
GROUP BY name, source;
