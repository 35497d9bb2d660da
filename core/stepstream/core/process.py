"""Run a long-lived process: logging, clean stop on SIGTERM and SIGINT, metrics, one log line for a fatal error."""

import logging
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

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


def serve_metrics(metrics: MetricsSettings) -> int:
    """Serve `/metrics` for Prometheus in a thread; return the port.

    Raises:
        Fatal: the port is taken.
    """
    from prometheus_client import start_http_server  # agents that use the SDK import this module but serve no metrics

    try:
        server, _ = start_http_server(metrics.port, metrics.host)
    except OSError as error:
        raise Fatal(f"metrics port {metrics.port}: {error.strerror}; set STEPSTREAM_METRICS_PORT") from None
    port = int(server.server_port)
    log.info("metrics at http://%s:%d/metrics", metrics.host, port)
    return port
