if(plain_rate = 0 OR fault_rate IS NULL, NULL, least(1., fault_rate / plain_rate)) AS r_fault,
    if(plain_rate = 0 OR environment_rate IS NULL, NULL, least(1., environment_rate / plain_rate)) AS r_environment,
    if(plain_rate = 0 OR prompt_rate IS NULL, NULL, least(1., prompt_rate / plain_rate)) AS r_prompt,
    (r_fault + r_environment + r_prompt) / 3 AS robustness,
    multiIf(plain_tasks = 0, 'no plain run', plain_rate = 0, 'no plain run succeeded',
        robustness IS NULL, 'a kind of perturbation has no run', '') AS robustness_reason
