-- The clocks of workers differ, so the broker's says when a worker was heard. Rows of earlier releases have the worker's.
ALTER TABLE worker_status ADD COLUMN IF NOT EXISTS written_at DateTime64(6, 'UTC') DEFAULT occurred_at COMMENT 'Time at which the broker wrote the record.';

ALTER TABLE worker_status ADD INDEX IF NOT EXISTS by_time written_at TYPE minmax;

-- Rows of earlier releases get both; until then they are computed.
ALTER TABLE worker_status MATERIALIZE COLUMN written_at;

ALTER TABLE worker_status MATERIALIZE INDEX by_time;

CREATE OR REPLACE VIEW workers AS
SELECT
    worker_id,
    max(written_at) AS seen_at,
    argMax(engine, (s.written_at, event_id)) AS engine,
    argMax(url, (s.written_at, event_id)) AS url,
    argMax(model, (s.written_at, event_id)) AS model,
    argMax(tuple(version), (s.written_at, event_id)).1 AS version,
    argMax(tuple(newest_version), (s.written_at, event_id)).1 AS newest_version,
    argMax(state, (s.written_at, event_id)) AS state,
    argMax(tuple(reason), (s.written_at, event_id)).1 AS reason,
    argMax(requests_in_flight, (s.written_at, event_id)) AS requests_in_flight
FROM worker_status AS s
GROUP BY worker_id;
