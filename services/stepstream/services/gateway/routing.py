"""Which upstream serves a model, and in which protocol. Pure."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from stepstream.config import Provider
from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.protocols.base import ProtocolName

_REMEMBERED = 10_000


class Routes:
    """The declared providers by the names of the models that they serve."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        self._providers = providers
        self._found: dict[str, Provider | None] = {}

    def provider(self, model: str) -> Provider | None:
        """The first provider with a pattern that the model's name fits; None: the inference workers."""
        try:
            return self._found[model]
        except KeyError:
            pass
        found = next((p for p in self._providers if any(fnmatchcase(model, glob) for glob in p.models)), None)
        if len(self._found) < _REMEMBERED:
            self._found[model] = found
        return found

    def speaking(self, protocol: ProtocolName) -> Provider | None:
        """The first provider that speaks a protocol, for calls that name no model."""
        return next((provider for provider in self._providers if protocol in provider.protocols), None)


def native(protocol: ProtocolName, speaks: Sequence[ProtocolName], upstream: str, path: str) -> bool:
    """Whether a call goes to its upstream as it is; if not, it is translated into a chat completion.

    Raises:
        BadRequest: the upstream speaks neither.
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
