-- Of two runs' lists of tools: Jensen-Shannon divergence (base 2) of their shares, and Levenshtein distance over the longer.
    (p, q) -> if(p = 0, 0., p / 2 * log2(2 * p / (p + q))) + if(q = 0, 0., q / 2 * log2(2 * q / (p + q))) AS divergence_term,
    (a, b) -> multiIf(empty(a) AND empty(b), 0., empty(a) OR empty(b), 1., arraySum(
        tool -> divergence_term(countEqual(a, tool) / length(a), countEqual(b, tool) / length(b)),
        arrayDistinct(arrayConcat(a, b)))) AS divergence_of,
    (a, b) -> if(empty(a) AND empty(b), 0., arrayLevenshteinDistance(a, b) / greatest(length(a), length(b))) AS edits_of,
    (deviation, mean) -> if(isNaN(deviation) OR mean = 0, NULL, deviation / mean) AS variation_of
