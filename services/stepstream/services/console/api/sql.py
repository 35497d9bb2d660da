"""Share expressions of SQL between the pages' queries. Pure text."""

Z = 1.959963984540054
"""Quantile of the normal distribution for two-sided 95 % intervals."""


def ms(time: str) -> str:
    """Return a time as milliseconds since the Unix epoch."""
    return f"toUnixTimestamp64Milli(toDateTime64({time}, 3, 'UTC'))"


def micros(parameter: str) -> str:
    """Return the time of a parameter in microseconds since the Unix epoch."""
    return f"fromUnixTimestamp64Micro({{{parameter}:Int64}}, 'UTC')"


def between(column: str) -> str:
    """Return the condition that a time is in the range of the parameters `since` and `until`."""
    return f"({column} >= {micros('since')} AND {column} < {micros('until')})"


def hours() -> str:
    """Return the condition that a rollup's hour is in the range of the parameters; its first hour counts whole."""
    return f"(hour >= toStartOfHour({micros('since')}) AND hour < {micros('until')})"


def wilson(successes: str, outcomes: str, side: int) -> str:
    """Return the lower (-1) or upper (1) bound of the 95 % Wilson score interval of a share."""
    n, share = f"({outcomes})", f"(({successes}) / ({outcomes}))"
    spread = f"{Z} * sqrt({share} * (1 - {share}) / {n} + {Z * Z} / (4 * {n} * {n}))"
    bound = f"({share} + {Z * Z} / (2 * {n}) {'-' if side < 0 else '+'} {spread}) / (1 + {Z * Z} / {n})"
    return f"greatest(0., {bound})" if side < 0 else f"least(1., {bound})"
