"""Decide what the API key of a call permits: paths, models, consent and time. Pure.

A call without a key, which only a gateway without `keys_required` takes, is permitted everything.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from stepstream.services.gateway.errors import Forbidden, Unauthorized
from stepstream.topics.events import ApiKey, Consent

_STATELESS = (("GET", "/v1/models"), ("GET", "/v1/models/*"), ("POST", "/v1/messages/count_tokens"))
"""Requests of the scope `calls` beside the model calls: they read and write nothing of the provider's account."""
_BY_USE: tuple[Consent, ...] = ("none", "analyse", "train")
_REMEDY = "the operator declares more with `stepstream keys change`"


@dataclass(frozen=True, slots=True)
class Grant:
    """Permissions of one authorized request."""

    key: ApiKey | None = None
    """None: a request without a key."""

    @property
    def key_id(self) -> str:
        """Id of the key; empty: none."""
        return "" if self.key is None else self.key["key_id"]

    @property
    def tenant(self) -> str | None:
        """Tenant of the key; None: no key decides it."""
        return None if self.key is None else self.key["tenant"]

    @property
    def applies_harness(self) -> bool:
        """True if the agent's harness is applied to calls with the key."""
        return self.key is not None and self.key["applies_harness"]

    @property
    def consent_ceiling(self) -> Consent:
        """The most that events with the key may permit."""
        return "train" if self.key is None or self.key["consent"] is None else self.key["consent"]

    def capped(self, consent: Consent) -> Consent:
        """Return the consent, lowered to the key's ceiling."""
        return stricter(consent, self.consent_ceiling)

    def may_call(self, model: str) -> bool:
        """Return True if the key declares the model; an empty name needs the pattern `*`."""
        models = None if self.key is None else self.key["models"]
        return models is None or any(fnmatchcase(model, pattern) for pattern in models)

    def check_model(self, model: str) -> None:
        """Check that the key declares a model.

        Raises:
            Forbidden: it does not.
        """
        if not self.may_call(model):
            assert self.key is not None
            asked = f"the model '{model}'" if model else "requests that name no model (pattern *)"
            raise self._lacks(asked, self.key["models"] or [])

    def may_use(self, method: str, path: str) -> bool:
        """Return True if the key permits a request that is no model call; `path` begins with `/v1/`."""
        if self.key is None:
            return True
        if not {"", "."}.isdisjoint(path.split("/")[1:-1]):  # an upstream may read them as another path
            return False
        if is_stateless(method, path):
            return True
        return any(fnmatchcase(path, pattern) for pattern in self.key["paths"])

    def check_path(self, method: str, path: str) -> None:
        """Check that the key permits a request that is no model call; `path` begins with `/v1/`.

        Raises:
            Forbidden: the key does not declare the path.
        """
        if not self.may_use(method, path):
            assert self.key is not None
            raise self._lacks(f"the path {path}", self.key["paths"])

    def check_end(self, now_us: int) -> None:
        """Check that the key has not ended.

        Raises:
            Unauthorized: it has.
        """
        if self.key is not None and self.key["ends_at_us"] is not None and now_us >= self.key["ends_at_us"]:
            ended = datetime.fromtimestamp(self.key["ends_at_us"] / 1e6, UTC).isoformat(timespec="seconds")
            raise Unauthorized(f"API key {self.key_id} ended at {ended}: {_REMEDY}")

    def _lacks(self, asked: str, declared: list[str]) -> Forbidden:
        known = ", ".join(declared) or "nothing"
        return Forbidden(f"API key {self.key_id} does not declare {asked}; it declares: {known}; {_REMEDY}")


ANYTHING = Grant()
"""The grant of a request without a key."""


def is_stateless(method: str, path: str) -> bool:
    """Return True for a request that runs no model and touches nothing stored, which providers give for free."""
    return any(method == each and fnmatchcase(path, pattern) for each, pattern in _STATELESS)


def stricter(first: Consent, second: Consent) -> Consent:
    """Return the consent that permits less."""
    return min(first, second, key=_BY_USE.index)
