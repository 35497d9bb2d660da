"""Run the gateway: serve until SIGTERM, then finish calls, send events and exit."""

import logging
import socket
import sys
from importlib.metadata import version

import uvicorn

from stepstream.config import Settings
from stepstream.core.process import Fatal, Stop, collect_garbage_rarely, run
from stepstream.services.gateway.app import GatewayApp
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.processes import ChildArguments, run_processes, stop_with_parent
from stepstream.services.gateway.publisher import Publisher
from stepstream.services.http_server import ServerConfig
from stepstream.services.listen import listen
from stepstream.topics.access import report_access

log = logging.getLogger(__name__)


def main(settings: Settings, stop: Stop) -> None:
    """Serve until a signal; with `gateway.processes` above 1, in that many processes.

    Raises:
        Fatal: events are lost, since neither Kafka nor the spool took them in time.
    """
    child = ChildArguments.parse(sys.argv[1:])
    if child is not None:
        stop_with_parent()
        _serve(settings, stop, child.sockets(settings))
    elif settings.gateway.processes > 1:
        run_processes(settings, stop)
    else:
        _serve(settings, stop, [listen(settings.gateway.host, settings.gateway.port, "gateway")])


def _serve(settings: Settings, stop: Stop, sockets: list[socket.socket]) -> None:
    """Serve in this process until a signal."""
    report_access(settings.kafka, "gateway", lambda: bool(stop))
    metrics = Metrics()
    publisher = Publisher(settings, f"gateway/{version('stepstream')}", metrics)
    config = ServerConfig(
        GatewayApp(settings, publisher, metrics),
        settings.http,
        loop="uvloop",
        lifespan="on",
        log_level="warning",
        timeout_graceful_shutdown=int(settings.gateway.shutdown_s),
    )
    upstreams = ", ".join(settings.gateway.upstreams)
    for sock in sockets:
        log.info("listening on http://%s:%d for %s", *sock.getsockname()[:2], upstreams)
    collect_garbage_rarely()
    if not stop:
        uvicorn.Server(config).run(sockets=sockets)
    left = publisher.close(settings.gateway.shutdown_s)
    if left.spooled:
        log.info("%d events remain in the spool; the next gateway sends them", left.spooled)
    if left.dropped:
        raise Fatal(
            f"{left.dropped} events are lost: Kafka did not acknowledge them in {settings.gateway.shutdown_s:g} s, and "
            "they are not in the spool; restore Kafka, or raise gateway.shutdown_s"
        )


if __name__ == "__main__":
    run("gateway", main)
