"""Run a long-lived process: logging, clean stop on SIGTERM and SIGINT, metrics, one log line for a fatal error."""

import gc
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import TCPServer, ThreadingMixIn
from types import FrameType
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from stepstream.config import MetricsSettings, Settings, SettingsError, load, masked

log = logging.getLogger(__name__)

FAULT = 1
MISCONFIGURED = 2


class Fatal(Exception):
    """An error that this process cannot recover from. Its message names the fact and the remedy for a log line.

    Subclasses: `KafkaUnavailable` (topics.client), `RegistryNotReady` (topics.admin).
    """


class Stop:
    """Request to end the process: loops test it, and `wait` returns early."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Request the end of the process."""
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Block for up to `timeout_s` seconds; return True as soon as the end is requested."""
        return self._event.wait(timeout_s)

    def on_signals(self) -> None:
        """Set this on SIGTERM and SIGINT. Call it from the main thread."""

        def handle(_number: int, _frame: FrameType | None) -> None:
            self.set()

        signal.signal(signal.SIGTERM, handle)
        signal.signal(signal.SIGINT, handle)


def run(name: str, main: Callable[[Settings, Stop], None]) -> None:
    """Load the settings, run `main` until it returns, and exit the process on an error.

    Exit code 0 after a clean stop, 1 after an error, 2 for invalid settings.
    """
    set_up_logging(name)
    stop = Stop()
    stop.on_signals()
    try:
        main(load(), stop)
    except SettingsError as error:
        log.error("settings: %s", error)
        sys.exit(MISCONFIGURED)
    except Fatal as error:
        log.error("%s", error)
        sys.exit(FAULT)
    except Exception:
        log.exception("stopped by an unexpected fault")
        sys.exit(FAULT)
    log.info("stopped")


def collect_garbage_rarely() -> None:
    """Search for unreachable cycles of objects seldom; call it once, when the process has its modules.

    Queues, caches and state are many small, long-lived objects without large cycles. With Python's thresholds, the
    searches among them cost the gateway a tenth of its processor time.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def set_up_logging(name: str) -> None:
    """Log to standard error, one line a record, with the process's name and without credentials."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_MaskingFormatter(f"%(asctime)s %(levelname)s {name} %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs a line for each call


class _MaskingFormatter(logging.Formatter):
    """Formats records without the credentials of addresses."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


def serve_metrics(metrics: MetricsSettings, fault: Callable[[], str] = lambda: "") -> int:
    """Serve `/metrics` for Prometheus and `/ready` for orchestrators in a thread; return the port.

    `fault` returns why the process is not ready: `/ready` answers 503 with it, and 200 if it is empty.

    Raises:
        Fatal: the port is taken.
    """
    from prometheus_client import make_wsgi_app  # agents that use the SDK import this module but serve no metrics

    pages = make_wsgi_app()

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/ready":
            page: Iterable[bytes] = pages(environ, start_response)
            return page
        reason = fault()
        headers = [("content-type", "text/plain; charset=utf-8")]
        start_response("503 Service Unavailable" if reason else "200 OK", headers)
        return [f"{reason or 'ok'}\n".encode()]

    server_class = _ThreadingServer6 if ":" in metrics.host else _ThreadingServer
    try:
        server = make_server(metrics.host, metrics.port, serve, server_class, handler_class=_QuietHandler)
    except OSError as error:
        raise Fatal(f"metrics port {metrics.port}: {error.strerror}; set STEPSTREAM_METRICS_PORT") from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    port = int(server.server_port)
    log.info("metrics at http://%s:%d/metrics", metrics.host, port)
    return port


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    """A slow reader delays no other."""

    daemon_threads = True

    def server_bind(self) -> None:
        # `HTTPServer` would look up the host's name, which may take seconds.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _ThreadingServer6(_ThreadingServer):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    """Logs no requests."""

    def log_message(self, format: str, *args: Any) -> None:
        pass
