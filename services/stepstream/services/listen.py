"""Opens the port of a service, before anything else is started, so that a taken one is told at once."""

import errno
import socket

from stepstream.config import variable
from stepstream.core.process import Fatal


def listen(host: str, port: int, section: str) -> socket.socket:
    """A listening socket; what connects before the service is ready waits.

    Args:
        host: address to listen on.
        port: its port.
        section: settings section that `host` and `port` come from, for the message.

    Raises:
        Fatal: the address cannot be had; the message says what to set.
    """
    # asyncio turns Nagle's algorithm off only where the protocol is named; without, each reply can take 40 ms.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be opened ({error.strerror})"
        raise Fatal(f"{host}:{port} {reason}: set {variable(section, 'port')} to a free port") from None
    return listener
