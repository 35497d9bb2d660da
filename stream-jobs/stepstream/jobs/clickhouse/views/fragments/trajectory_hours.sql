SELECT *, toDate(hour) AS day
    FROM trajectory_hours FINAL
    WHERE hour >= {since:DateTime('UTC')} AND hour < {until:DateTime('UTC')}
