(s, n) -> if(n = 0, NULL, s / n) AS share_of,
    (s, n, z) -> if(n = 0, NULL, greatest(0., (s / n + z * z / (2 * n)
        - z * sqrt(s / n * (1 - s / n) / n + z * z / (4. * n * n))) / (1 + z * z / n))) AS wilson_low_of,
    (s, n, z) -> if(n = 0, NULL, least(1., (s / n + z * z / (2 * n)
        + z * sqrt(s / n * (1 - s / n) / n + z * z / (4. * n * n))) / (1 + z * z / n))) AS wilson_high_of,
    1.959963984540054 AS z95
