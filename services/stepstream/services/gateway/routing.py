"""Which upstream serves a model, and in which protocol. Pure.

The paths of the gateway: a session may stand before them, and the version may be left out. Pure.

Which upstream a call goes to: the healthy one with the fewest calls in flight. Pure: time is passed in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from stepstream.config import ProviderSettings
from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.protocols.base import ProtocolName

SESSION = "/t/"
VERSION = "/v1"
# Without a version, only what is known to be a model API's goes through to upstreams.
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


def take_session(path: str) -> tuple[str, str]:
    """The session in a path, or empty, and the path after it: `/t/s1/v1/messages` is `s1` and `/v1/messages`."""
    session = ""
    if path.startswith(SESSION):
        session, _, rest = path[len(SESSION) :].partition("/")
        path = "/" + rest
    # Anthropic's client puts the version before its paths, whether or not its base address ends with one.
    return session, path.removeprefix(VERSION) if path.startswith(f"{VERSION}{VERSION}/") else path


def versioned(path: str) -> str | None:
    """A path of a model API beginning with `/v1/`; None: it is not one, or climbs out of it."""
    if ".." in path.split("/"):
        return None
    if path.startswith(f"{VERSION}/"):
        return path
    return VERSION + path if path.startswith(_UNVERSIONED) else None


FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


@dataclass(slots=True)
class Upstream:
    """One inference worker, as the calls to it show it. Times are seconds of a monotonic clock."""

    url: str
    in_flight: int = 0
    chosen: int = 0
    failures: int = 0
    """Failures in a row; those during a pause, of calls begun before it, count once."""
    paused_until: float = 0.0
    fault: str = ""

    def succeeded(self) -> None:
        """It answered."""
        self.failures = 0
        self.paused_until = 0.0
        self.fault = ""

    def failed(self, fault: str, now: float) -> None:
        """It did not: leave it alone for a while, twice as long after each further failure, up to a second."""
        self.fault = fault
        if now >= self.paused_until:
            self.paused_until = now + min(FIRST_PAUSE_S * 2**self.failures, LONGEST_PAUSE_S)
            self.failures += 1


class Pool:
    """All upstreams."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.upstreams = [Upstream(url.rstrip("/")) for url in urls]

    def choose(self, now: float) -> Upstream | None:
        """The one for the next call; None while all are paused."""
        best: Upstream | None = None
        for upstream in self.upstreams:
            if upstream.paused_until <= now and (
                best is None or (upstream.in_flight, upstream.chosen) < (best.in_flight, best.chosen)
            ):
                best = upstream
        if best is not None:
            best.chosen += 1
        return best

    def next_try(self) -> float:
        """When the first pause ends."""
        return min(upstream.paused_until for upstream in self.upstreams)

    def faults(self) -> str:
        """What is wrong with each, for an error message."""
        return "; ".join(f"{u.url}: {u.fault or 'no answer'}" for u in self.upstreams)


_REMEMBERED = 10_000


class Routes:
    """The declared providers by the names of the models that they serve."""

    def __init__(self, providers: Sequence[ProviderSettings]) -> None:
        self._providers = providers
        self._found: dict[str, ProviderSettings | None] = {}

    def provider(self, model: str) -> ProviderSettings | None:
        """The first provider with a pattern that the model's name fits; None: the inference workers."""
        try:
            return self._found[model]
        except KeyError:
            pass
        found = next((p for p in self._providers if any(fnmatchcase(model, glob) for glob in p.models)), None)
        if len(self._found) < _REMEMBERED:
            self._found[model] = found
        return found

    def speaking(self, protocol: ProtocolName) -> ProviderSettings | None:
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
