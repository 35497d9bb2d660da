-- Of each pair of `paths`, lists of tools: the Jensen-Shannon divergence (base 2) of their shares, and the Levenshtein
        -- distance over the longer one. Pairs are built first: a lambda copies all that it reads beside its arguments.
        arrayMap(pair -> (
            multiIf(empty(pair.1) AND empty(pair.2), 0., empty(pair.1) OR empty(pair.2), 1., arraySum(
                (p, q) -> if(p = 0, 0., p / 2 * log2(2 * p / (p + q))) + if(q = 0, 0., q / 2 * log2(2 * q / (p + q))),
                arrayMap(tool -> countEqual(pair.1, tool) / length(pair.1), arrayDistinct(arrayConcat(pair.1, pair.2))),
                arrayMap(tool -> countEqual(pair.2, tool) / length(pair.2), arrayDistinct(arrayConcat(pair.1, pair.2))))),
            if(empty(pair.1) AND empty(pair.2), 0.,
                arrayLevenshteinDistance(pair.1, pair.2) / greatest(length(pair.1), length(pair.2)))),
            arrayFlatten(arrayMap((a, i) -> arrayMap(b -> (a, b), arraySlice(paths, i + 1)), paths, arrayEnumerate(paths)))) AS pairs
