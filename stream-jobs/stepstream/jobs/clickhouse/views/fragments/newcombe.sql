(s1, n1, s0, n0) -> if(n1 = 0 OR n0 = 0, NULL, s1 / n1 - s0 / n0 - sqrt(
        pow(s1 / n1 - wilson_low_of(s1, n1, z95), 2) + pow(wilson_high_of(s0, n0, z95) - s0 / n0, 2))) AS newcombe_low_of,
    (s1, n1, s0, n0) -> if(n1 = 0 OR n0 = 0, NULL, s1 / n1 - s0 / n0 + sqrt(
        pow(wilson_high_of(s1, n1, z95) - s1 / n1, 2) + pow(s0 / n0 - wilson_low_of(s0, n0, z95), 2))) AS newcombe_high_of
