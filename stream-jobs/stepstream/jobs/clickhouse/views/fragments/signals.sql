-- The day before, since clocks differ: which rows of a trajectory count must not depend on the range.
    SELECT tenant, trajectory_id, name, value, category, occurred_at
    FROM feedback FINAL
    PREWHERE name IN ($signal_names) $of_signals
    WHERE occurred_at >= {since:DateTime('UTC')} - INTERVAL 1 DAY AND retracts = ''
        AND (tenant, source_event_id) NOT IN (SELECT tenant, retracts FROM feedback WHERE retracts != '')
        AND (tenant, event_id) NOT IN (SELECT tenant, retracts FROM feedback WHERE retracts != '')
