-- The hours or days that a rollup computes anew, as an array: the engine evaluates a scalar once; see ../rollup_refresh.py.
    SELECT groupArray($unit)
    FROM
    (
        SELECT $unit
        FROM (SELECT $marked AS $unit, max(at) AS marked FROM dirty_hours WHERE of = '$facts' GROUP BY $unit) AS d
        LEFT JOIN
        (
            SELECT $unit, max(version) AS done FROM $rollup
            WHERE $unit IN (SELECT $marked FROM dirty_hours WHERE of = '$facts') GROUP BY $unit
        ) AS r USING ($unit)
        WHERE marked > done - INTERVAL 60 SECOND AND $unit >= $complete_since
        ORDER BY $unit DESC
        LIMIT $most
    )
