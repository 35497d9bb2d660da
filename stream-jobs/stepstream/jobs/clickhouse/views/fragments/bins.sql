(bins, counts, q) -> if(arraySum(counts) = 0, NULL, exp((bins[arrayFirstIndex(
        reached -> reached >= q * arraySum(counts), arrayCumSum(counts))] + 0.5) * ln(1.1))) AS quantile_of_bins
