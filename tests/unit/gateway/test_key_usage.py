"""Rates and budgets of API keys hold over several gateways, which share their counts by records."""

import pytest
from api_key_records import UsageRecords, key_record, new_counts

from stepstream.config import ModelPriceSettings
from stepstream.core.prices import Prices
from stepstream.services.gateway.errors import BudgetSpent, Forbidden, RateExceeded
from stepstream.services.gateway.key_usage import KeyCounts
from stepstream.topics.events import new_key_usage

PRICES = Prices(
    [
        ModelPriceSettings(model="small-*", prompt_usd=1, response_usd=2),
        ModelPriceSettings(model="*", prompt_usd=100, response_usd=0),
    ]
)


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_rate_holds_in_any_minute_and_says_when_to_try_again() -> None:
    clock = Clock()
    counts, key = new_counts(now_s=clock), key_record(requests_per_minute=3)
    for second in (0, 10, 20):
        clock.now = 1000.0 + second
        counts.admit(key, spends=True)
    with pytest.raises(RateExceeded, match="3 requests a minute: try again in 40 s") as refused:
        counts.admit(key, spends=True)
    assert refused.value.headers == ((b"retry-after", b"40"),)
    clock.now += 40
    counts.admit(key, spends=True)
    with pytest.raises(RateExceeded, match="try again in 10 s"):
        counts.admit(key, spends=True)
    assert counts.used("ab12").requests == 4  # refused requests do not count


def test_each_key_has_a_rate_of_its_own() -> None:
    counts = new_counts()
    counts.admit(key_record(requests_per_minute=1), spends=True)
    counts.admit(key_record(requests_per_minute=1, key_id="other"), spends=True)
    for _ in range(1000):
        counts.admit(key_record(key_id="without"), spends=True)


def test_a_rate_counts_the_requests_of_other_gateways() -> None:
    records, clock = UsageRecords(), Clock()
    counts, key = new_counts(records, now_s=clock), key_record(requests_per_minute=10)
    for requests in (4, 9):
        records.put("ab12/other", usage(requests=requests))
    counts.admit(key, spends=True)
    with pytest.raises(RateExceeded):
        counts.admit(key, spends=True)


def test_a_restart_counts_no_earlier_request_as_a_new_one() -> None:
    records = UsageRecords(current=False)
    records.rows["ab12/earlier"] = usage(requests=500)
    counts = new_counts(records)
    records.put("ab12/earlier", usage(requests=600))
    records.current = True
    counts.admit(key_record(requests_per_minute=1), spends=True)
    assert counts.used("ab12").requests == 601


def test_a_budget_of_tokens_holds_over_gateways_and_restarts() -> None:
    records = UsageRecords()
    first, second, key = new_counts(records), new_counts(records), key_record(token_budget=100)
    first.admit(key, spends=True)
    first.add_tokens("ab12", "small-1", 40, 30)
    share(first, records)
    second.admit(key, spends=True)
    second.add_tokens("ab12", "small-1", 20, 10)
    share(second, records)
    restarted = new_counts(records)
    for counts in (first, second, restarted):
        assert counts.used("ab12").tokens == 100
        with pytest.raises(BudgetSpent, match="ab12 has used 100 of 100 tokens") as refused:
            counts.admit(key, spends=True)
        assert (b"x-should-retry", b"false") in refused.value.headers
        counts.admit(key, spends=False)  # feedback costs nothing
    assert first.unpublished() != []
    assert first.unpublished() == []


def test_a_sum_that_is_read_twice_counts_once() -> None:
    records = UsageRecords()
    counts = new_counts(records)
    for tokens in (70, 70, 30, 70):  # a table that reads its topic again begins with older records
        records.put("ab12/other", usage(prompt_tokens=tokens))
    assert counts.used("ab12").tokens == 70
    records.put("ab12/other", None)
    assert counts.used("ab12").tokens == 0


def test_a_budget_of_cost_counts_by_the_price_table() -> None:
    counts = new_counts(prices=PRICES)
    key = key_record(cost_budget_usd=0.5)
    counts.add_tokens("ab12", "small-1", 100_000, 150_000)
    assert counts.used("ab12").cost_usd == pytest.approx(0.4)
    counts.admit(key, spends=True)
    counts.add_tokens("ab12", "large", 1_000, 1_000_000)
    with pytest.raises(BudgetSpent, match=r"0.50 of 0.50 US dollars"):
        counts.admit(key, spends=True)


def test_a_model_without_a_price_is_refused_to_a_key_with_a_budget_of_cost() -> None:
    counts = new_counts(prices=Prices([ModelPriceSettings(model="small-*", prompt_usd=1, response_usd=2)]))
    key = key_record(cost_budget_usd=1.0)
    counts.check_price(key, "small-1")
    with pytest.raises(Forbidden, match="the model 'large' has no price"):
        counts.check_price(key, "large")
    counts.check_price(key_record(), "large")
    counts.check_price(None, "large")


def usage(**sums: int) -> object:
    return new_key_usage(event_id="e", occurred_at_us=1, producer="p", key_id="ab12", gateway_id="other", **sums)


def share(counts: KeyCounts, records: UsageRecords) -> None:
    for name, record in counts.unpublished():
        records.put(name, record)
