"""Run the console: `python -m stepstream.services.console`."""

import logging

import uvicorn

from stepstream.config import ConsoleSettings, Settings, variable
from stepstream.config.base import is_loopback
from stepstream.core.process import Fatal, Stop, run
from stepstream.services.console.app import build_app
from stepstream.services.http_server import ServerConfig
from stepstream.services.listen import listen
from stepstream.topics.access import report_access

log = logging.getLogger("stepstream.services.console")


def main(settings: Settings, stop: Stop) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        Fatal: the port is taken, or others reach the console without login.
    """
    check_access(settings.console)
    listener = listen(settings.console.host, settings.console.port, "console")
    log.info("console at http://%s:%d", settings.console.host, settings.console.port)
    report_access(settings.kafka, "console", lambda: bool(stop))
    config = ServerConfig(
        build_app(settings), settings.http, loop="uvloop", log_level="warning", timeout_graceful_shutdown=5
    )
    if not stop:
        uvicorn.Server(config).run(sockets=[listener])


def check_access(console: ConsoleSettings) -> None:
    """Refuse to show the console to other machines without login.

    Raises:
        Fatal: it would be; the message names the settings.
    """
    if not console.login and not is_loopback(console.host):
        raise Fatal(
            f"others reach the console at {console.host} without login: set {variable('console', 'login')}=true and "
            f"add users with `stepstream console users add`, or set {variable('console', 'host')}=127.0.0.1"
        )


if __name__ == "__main__":
    run("console", main)
