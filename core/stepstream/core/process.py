"""What every long-lived process does alike: logging, a clean stop on SIGTERM and SIGINT, metrics, one-line faults."""

import logging
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from prometheus_client import start_http_server

from stepstream.config import MetricsSettings, Settings, SettingsError, load, masked
from stepstream.topics.client import KafkaUnavailable

log = logging.getLogger(__name__)

FAULT = 1
MISCONFIGURED = 2


class Fatal(Exception):
    """A fault that this process cannot mend; its message is the last line of the log."""


class Stop:
    """Set when the process is asked to end; loops look at it, waits end early."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Asks the process to end."""
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Waits; True as soon as the process is asked to end."""
        return self._event.wait(timeout_s)

    def on_signals(self) -> None:
        """Ends on SIGTERM and SIGINT. Call it from the main thread."""

        def handle(_number: int, _frame: FrameType | None) -> None:
            self.set()

        signal.signal(signal.SIGTERM, handle)
        signal.signal(signal.SIGINT, handle)


class _Masking(logging.Formatter):
    """Lines without the credentials that addresses may carry."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return masked(super().format(record))


def set_up_logging(name: str) -> None:
    """One line a record on standard error, with the process's name."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Masking(f"%(asctime)s %(levelname)s {name} %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def serve_metrics(metrics: MetricsSettings) -> int:
    """Shows `/metrics` for Prometheus; returns the port.

    Raises:
        Fatal: the port is taken.
    """
    try:
        server, _ = start_http_server(metrics.port, metrics.host)
    except OSError as error:
        raise Fatal(f"metrics port {metrics.port}: {error.strerror}; set STEPSTREAM_METRICS_PORT") from None
    port = int(server.server_port)
    log.info("metrics at http://%s:%d/metrics", metrics.host, port)
    return port


def run(name: str, main: Callable[[Settings, Stop], None]) -> None:
    """Runs a process: loads the settings, runs `main` until it returns, and exits with a meaningful status.

    Exit status 0 after a clean stop, 1 after a fault, 2 for settings that cannot be used.
    """
    set_up_logging(name)
    stop = Stop()
    stop.on_signals()
    try:
        main(load(), stop)
    except SettingsError as error:
        log.error("settings: %s", error)
        sys.exit(MISCONFIGURED)
    except (Fatal, KafkaUnavailable) as error:
        log.error("%s", error)
        sys.exit(FAULT)
    except Exception:
        log.exception("stopped by an unexpected fault")
        sys.exit(FAULT)
    log.info("stopped")
