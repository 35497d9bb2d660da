-- Of runs, those with violations, and the sum of their worst severities.
    1 - violating_runs / runs AS s_comp,
    if(violating_runs = 0, NULL, 1 - severities / violating_runs) AS s_harm,
    1 - (1 - s_comp) * (1 - ifNull(s_harm, 1)) AS safety_of_runs
