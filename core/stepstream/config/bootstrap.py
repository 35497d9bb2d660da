"""Parse lists of brokers in every form that librdkafka takes: `[PROTOCOL://]HOST[:PORT]`, separated by
commas or spaces.
"""

import re
from dataclasses import dataclass

DEFAULT_PORT = 9092
_ADDRESS = re.compile(
    r"(?:(?P<protocol>[A-Za-z_]+)://)?"
    r"(?:\[(?P<bracketed>[0-9A-Fa-f:.%\w]+)\]|(?P<bare>[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*)|(?P<name>[^\s:/\[\]]+))"
    r"(?(bare)|(?::(?P<port>\d{1,5}))?)/?"
)


@dataclass(frozen=True)
class BrokerAddress:
    """One broker of a list."""

    host: str
    """Name or address, of IPv6 without brackets."""
    port: int
    protocol: str = ""
    """Security protocol in upper case; empty: none is given."""

    def __str__(self) -> str:
        """Return `host:port`, of IPv6 in brackets: the form that all clients take."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bootstrap(text: str) -> list[BrokerAddress]:
    """Parse a list of brokers.

    Raises:
        ValueError: an entry is no address, or there is none.
    """
    entries = [entry for entry in re.split(r"[,\s]+", text) if entry]
    if not entries:
        raise ValueError("no broker is given: write host:port, separated by commas")
    return [_parse(entry) for entry in entries]


def _parse(entry: str) -> BrokerAddress:
    match = _ADDRESS.fullmatch(entry)
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or not 1 <= port <= 65535:
        raise ValueError(f"'{entry}' is no broker: write host:port, [IPv6]:port or SSL://host:port")
    host = match["bracketed"] or match["bare"] or match["name"]
    return BrokerAddress(host, port, (match["protocol"] or "").upper())
