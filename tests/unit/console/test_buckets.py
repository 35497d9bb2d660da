"""Test the width of a chart's points."""

import pytest

from stepstream.services.console.api.buckets import bucket_s


@pytest.mark.parametrize(
    ("extent_s", "width_s"),
    [
        (0, 10),
        (180, 10),
        (1500, 10),
        (1501, 60),
        (2 * 3600, 60),
        (6 * 3600, 300),
        (6 * 3600 + 1, 3600),
        (6 * 86_400, 3600),
        (7 * 86_400, 86_400),
        (366 * 86_400, 86_400),
    ],
)
def test_a_chart_has_at_most_150_points_where_widths_allow(extent_s: float, width_s: int) -> None:
    assert bucket_s(extent_s) == width_s
