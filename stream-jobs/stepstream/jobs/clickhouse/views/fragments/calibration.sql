-- Of stated confidences f and outcomes y.
    arraySum(b -> abs(arraySum((p, hit) -> if(least(9, floor(p * 10 + 1e-9)) = b, hit - p, 0), f, y)), range(10)) / length(f) AS ece,
    arrayAvg((p, hit) -> pow(p - hit, 2), f, y) AS brier,
    arrayAvg(y) AS success_rate,
    if(empty(f) OR success_rate IN (0, 1), NULL, arrayROCAUC(f, y)) AS auroc
