"""Runs the store: `python -m stepstream.services.store`."""

import errno
import logging
import signal
import socket
import sys

import uvicorn

from stepstream import config
from stepstream.services.store.app import build
from stepstream.services.store.engine import Engine, FolderInUseError
from stepstream.services.store.run import Runner

logger = logging.getLogger("stepstream.services.store")

# Seconds that running queries get to end after SIGTERM.
_GRACE_S = 30


def main() -> int:
    """Serves until told to stop; 1 where it cannot start."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = config.load()
    except config.SettingsError as error:
        print(f"store: {error}", file=sys.stderr)
        return 1
    host, port = settings.store.host, settings.store.port
    path = (settings.paths.data / "store").absolute()
    try:
        listener = _listen(host, port)
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be opened ({error.strerror})"
        print(
            f"store: {host}:{port} {reason}: set {config.variable('store', 'port')} to a free port, and "
            f"{config.variable('clickhouse', 'url')} to the same",
            file=sys.stderr,
        )
        return 1
    try:
        engine = Engine(path, settings.clickhouse.database)
    except FolderInUseError:
        print(
            f"store: {path} is open in another process: stop that one, or set {config.variable('paths', 'data')} "
            "to another folder",
            file=sys.stderr,
        )
        return 1
    logger.info("ClickHouse %s (chDB) owns %s, listening on %s:%d", engine.version, path, host, port)
    app = build(Runner(engine), settings.clickhouse.user, settings.clickhouse.password.get_secret_value())
    server = uvicorn.Server(
        uvicorn.Config(
            app, loop="uvloop", http="httptools", log_config=None, access_log=False, timeout_graceful_shutdown=_GRACE_S
        )
    )
    # uvicorn raises the signal that stopped it once more when it has shut down; by then all is done.
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, lambda *_: None)
    server.run(sockets=[listener])
    logger.info("closed %s", path)
    return 0


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


if __name__ == "__main__":
    sys.exit(main())
