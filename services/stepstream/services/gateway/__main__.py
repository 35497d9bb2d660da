"""`python -m stepstream.services.gateway`: serves until SIGTERM, then finishes calls, delivers events and exits."""

import gc
import logging
from importlib.metadata import version

import uvicorn

from stepstream.config import Settings
from stepstream.core.process import Fatal, Stop, run
from stepstream.services.gateway.app import GatewayApp
from stepstream.services.gateway.http.server import HttpServerProtocol
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.publisher import Publisher
from stepstream.services.listen import listen

log = logging.getLogger(__name__)


def main(settings: Settings, stop: Stop) -> None:
    """Serves until a signal."""
    sock = listen(settings.gateway.host, settings.gateway.port, "gateway")
    metrics = Metrics()
    publisher = Publisher(settings, f"gateway/{version('stepstream')}", metrics)
    config = uvicorn.Config(
        GatewayApp(settings, publisher, metrics),
        loop="uvloop",
        http=HttpServerProtocol,
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.gateway.shutdown_s),
    )
    log.info("listening on http://%s:%d for %s", *sock.getsockname()[:2], ", ".join(settings.gateway.upstreams))
    # Contexts and trajectories are many small objects that live long: looking through them often costs a tenth of the
    # processor time, and there are no cycles of weight to be found.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    if not stop:
        uvicorn.Server(config).run(sockets=[sock])
    left = publisher.close(settings.gateway.shutdown_s)
    if left.kept:
        log.info("%d events wait on disk for the next gateway", left.kept)
    if left.lost:
        raise Fatal(f"{left.lost} events could not be delivered in {settings.gateway.shutdown_s:g} s and are lost")


if __name__ == "__main__":
    run("gateway", main)
