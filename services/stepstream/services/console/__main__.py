"""Run the console: `python -m stepstream.services.console`."""

import logging

import uvicorn

from stepstream.config import Settings
from stepstream.core.process import Stop, run
from stepstream.services.console.app import build_app
from stepstream.services.http_server import ServerConfig
from stepstream.services.listen import listen

log = logging.getLogger("stepstream.services.console")


def main(settings: Settings, stop: Stop) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        Fatal: the port is taken.
    """
    listener = listen(settings.console.host, settings.console.port, "console")
    log.info("console at http://%s:%d", settings.console.host, settings.console.port)
    config = ServerConfig(
        build_app(settings), settings.http, loop="uvloop", log_level="warning", timeout_graceful_shutdown=5
    )
    if not stop:
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    run("console", main)
