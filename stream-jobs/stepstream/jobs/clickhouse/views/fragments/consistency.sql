-- Of the tasks of `task_consistency` with two runs or more.
    avgIf(pow(2 * c / n - 1, 2), n >= 2) AS c_out,
    if(countIf(length(paths) > 1) = 0, NULL, avgIf(1 - arrayAvg(pairs.1), length(paths) > 1)) AS c_traj_d,
    if(countIf(length(paths) > 1) = 0, NULL, avgIf(1 - arrayAvg(pairs.2), length(paths) > 1)) AS c_traj_s,
    avgIf(if(empty(variations), NULL, exp(-arrayAvg(variations))), n >= 2) AS c_res,
    (c_out + (c_traj_d + c_traj_s) / 2 + c_res) / 3 AS consistency
