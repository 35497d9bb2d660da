"""Open a service's port before anything else starts, so that a taken port fails at once."""

import errno
import socket

from stepstream.config import variable
from stepstream.core.process import Fatal


def listen(host: str, port: int, section: str) -> socket.socket:
    """Return a listening socket; clients that connect before the service is ready wait.

    Args:
        host: address to listen on.
        port: its port.
        section: settings section of `host` and `port`, for the message.

    Raises:
        Fatal: the address is taken or cannot be opened; the message names the setting.
    """
    # asyncio turns Nagle's algorithm off only if the socket names its protocol; otherwise a reply can take 40 ms.
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
