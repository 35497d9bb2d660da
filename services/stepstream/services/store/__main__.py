"""Run the store: `python -m stepstream.services.store`."""

import logging

import uvicorn

from stepstream.config import Settings, variable
from stepstream.config.secrets import store_credentials
from stepstream.core.process import Fatal, Stop, run
from stepstream.services.http_server import ServerConfig
from stepstream.services.listen import listen
from stepstream.services.store.access import Limits
from stepstream.services.store.app import build_app
from stepstream.services.store.engine import Engine, FolderInUseError
from stepstream.services.store.request import Account
from stepstream.services.store.run import Runner

log = logging.getLogger("stepstream.services.store")

# Seconds for running queries to end after SIGTERM.
_GRACE_S = 30


def main(settings: Settings, _stop: Stop) -> None:
    """Serve until SIGTERM or SIGINT, which uvicorn handles; then let running queries end and close the folder.

    Raises:
        Fatal: the port or the data folder is in use.
    """
    host, port = settings.store.host, settings.store.port
    path = (settings.paths.data / "store").absolute()
    listener = listen(host, port, "store")
    try:
        limits = Limits(settings.store.query_s, settings.store.query_memory_bytes, settings.store.result_bytes)
        engine = Engine(path, settings.clickhouse.database, limits)
    except FolderInUseError:
        raise Fatal(
            f"{path} is open in another process: stop that one, or set {variable('paths', 'data')} to another folder"
        ) from None
    log.info("ClickHouse %s (chDB) owns %s, listening on %s:%d", engine.version, path, host, port)
    accounts = [Account(*store_credentials(settings, reads_only=reads), reads) for reads in (False, True)]
    config = ServerConfig(
        build_app(Runner(engine), accounts), settings.http, loop="uvloop", timeout_graceful_shutdown=_GRACE_S
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    run("store", main)
