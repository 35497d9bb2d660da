"""Choose a call's session, path, provider and protocol. Pure.

1. `split_session` takes a session off the path, and `with_version` completes the path.
2. `ProviderRoutes` maps the model's name to a declared provider; all other models are the inference workers'.
3. `speaks_natively` decides whether the call needs translation.

`worker_pool.py` chooses among the workers.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from stepstream.config import ProviderSettings
from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.protocols.base import ProtocolName

SESSION = "/t/"
VERSION = "/v1"
_UNVERSIONED = (
    "/models",
    "/embeddings",
    "/completions",
    "/messages/",
    "/responses/",
    "/moderations",
    "/audio/",
    "/images/",
)
"""Paths without a version that are passed on: those of known model APIs."""
_CACHED_MODELS = 10_000


def split_session(path: str) -> tuple[str, str]:
    """Return the session in a path, or empty, and the rest: `/t/s1/v1/messages` is `s1` and `/v1/messages`."""
    session = ""
    if path.startswith(SESSION):
        session, _, rest = path[len(SESSION) :].partition("/")
        path = "/" + rest
    # Anthropic's client prefixes its paths with the version even if the base address ends with one.
    return session, path.removeprefix(VERSION) if path.startswith(f"{VERSION}{VERSION}/") else path


def with_version(path: str) -> str | None:
    """Return the path of a model API with its `/v1/`; None: another path, or one with `..`."""
    if ".." in path.split("/"):
        return None
    if path.startswith(f"{VERSION}/"):
        return path
    return VERSION + path if path.startswith(_UNVERSIONED) else None


class ProviderRoutes:
    """The declared providers by model name and protocol."""

    def __init__(self, providers: Sequence[ProviderSettings]) -> None:
        self._providers = providers
        self._by_model: dict[str, ProviderSettings | None] = {}

    def for_model(self, model: str) -> ProviderSettings | None:
        """Return the first provider with a pattern or an alias that matches the model; None: the inference workers."""
        try:
            return self._by_model[model]
        except KeyError:
            pass
        provider = next((p for p in self._providers if _serves(p, model)), None)
        if len(self._by_model) < _CACHED_MODELS:
            self._by_model[model] = provider
        return provider

    def for_protocol(self, protocol: ProtocolName) -> ProviderSettings | None:
        """Return the first provider that speaks a protocol, for calls that name no model; None: none does."""
        return next((provider for provider in self._providers if protocol in provider.protocols), None)


def _serves(provider: ProviderSettings, model: str) -> bool:
    return model in provider.aliases or any(fnmatchcase(model, glob) for glob in provider.models)


def speaks_natively(protocol: ProtocolName, speaks: Sequence[ProtocolName], upstream: str, path: str) -> bool:
    """Return True if the upstream speaks the call's protocol; False if the call must become a chat completion.

    Raises:
        BadRequest: the upstream speaks neither that protocol nor chat.
    """
    if protocol in speaks:
        return True
    if "chat" in speaks:
        return False
    known = ", ".join(speaks)
    raise BadRequest(
        f"{upstream} serves this model in the protocol {known}, neither in {protocol} nor in chat, into which {path} "
        "could be translated: call it by its own path, or put chat into its gateway.providers entry if it speaks that"
    )
