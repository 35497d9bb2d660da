"""Run the store: `python -m stepstream.services.store`."""

import logging

import uvicorn

from stepstream.config import Settings, variable
from stepstream.core.process import Fatal, Stop, run
from stepstream.services.http_server import ServerConfig
from stepstream.services.listen import listen
from stepstream.services.store.app import build_app
from stepstream.services.store.engine import Engine, FolderInUseError
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
        engine = Engine(path, settings.clickhouse.database)
    except FolderInUseError:
        raise Fatal(
            f"{path} is open in another process: stop that one, or set {variable('paths', 'data')} to another folder"
        ) from None
    log.info("ClickHouse %s (chDB) owns %s, listening on %s:%d", engine.version, path, host, port)
    app = build_app(Runner(engine), settings.clickhouse.user, settings.clickhouse.password.get_secret_value())
    config = ServerConfig(app, settings.http, loop="uvloop", timeout_graceful_shutdown=_GRACE_S)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    run("store", main)
