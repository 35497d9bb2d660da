"""Ranges of the primary key cover the times of the rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.jobs.erasure import row_times
from stepstream.jobs.erasure.row_keys import FACTS
from stepstream.jobs.erasure.row_times import RowTimes, within

STEPS = FACTS[0]
Times = st.lists(
    st.builds(
        lambda tenant, first, length: RowTimes(1, tenant, 2, first, first + length),
        st.sampled_from("ab"),
        st.integers(0, 20_000),
        st.integers(0, 5_000),
    ),
    min_size=1,
)


@given(Times)
def test_each_range_within_the_times_is_read_once_and_no_other(times: list[RowTimes]) -> None:
    condition, tables = within(STEPS, times)
    assert condition.startswith(f"indexHint((tenant, {STEPS.key[1]}) IN ")
    found = list(tables["buckets"])
    expected = {
        (one.tenant, second // 300 * 300)
        for one in times
        for second in (*range(one.first_s, one.last_s, 300), one.last_s)
    }
    assert set(found) == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize("first_s", [-1, 0])
def test_a_time_before_1970_and_too_many_ranges_read_the_tenants(monkeypatch: pytest.MonkeyPatch, first_s: int) -> None:
    monkeypatch.setattr(row_times, "MOST_BUCKETS", 2)
    assert within(STEPS, [RowTimes(1, "it's", 2, first_s, 900)]) == ("tenant IN ('it\\'s')", {})
