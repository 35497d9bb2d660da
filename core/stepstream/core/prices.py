"""Compute the cost of a model call from the price table `gateway.prices`. Pure."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from stepstream.config import ModelPriceSettings

_PER = 1_000_000


class Prices:
    """The price table."""

    def __init__(self, prices: Sequence[ModelPriceSettings] = ()) -> None:
        self._prices = prices

    def cost_usd(self, model: str, prompt_tokens: int, response_tokens: int) -> float | None:
        """Return the cost in US dollars by the first entry that matches the model; None: no entry does."""
        price = next((price for price in self._prices if fnmatchcase(model, price.model)), None)
        if price is None:
            return None
        return (price.prompt_usd * prompt_tokens + price.response_usd * response_tokens) / _PER
