SELECT tenant, trajectory_id, name, value, category, occurred_at
    FROM feedback FINAL
    WHERE occurred_at >= {since:DateTime('UTC')} AND retracts = ''
        AND (tenant, source_event_id) NOT IN (SELECT tenant, retracts FROM feedback WHERE retracts != '')
        AND (tenant, event_id) NOT IN (SELECT tenant, retracts FROM feedback WHERE retracts != '')
