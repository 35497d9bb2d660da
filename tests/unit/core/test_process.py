"""Processes exit with a meaningful code after invalid settings or a fatal error, and log no credentials."""

import logging
import signal
from collections.abc import Iterator

import httpx
import pytest

from stepstream.config import KafkaSettings, MetricsSettings, Settings
from stepstream.core.process import FAULT, MISCONFIGURED, Fatal, Stop, run, serve_metrics, set_up_logging
from stepstream.embedded.ports import free_block
from stepstream.topics.admin import RegistryNotReady
from stepstream.topics.client import KafkaUnavailable
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.producer import EventProducer

NOWHERE = KafkaSettings(security_protocol="SSL", ssl_ca_location="/nowhere.pem")


@pytest.fixture(autouse=True)
def logging_and_signals_as_before() -> Iterator[None]:
    handlers, level = logging.root.handlers[:], logging.root.level
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in signals.items():
        signal.signal(number, handler)
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.mark.parametrize("client", ["producer", "consumer"])
def test_invalid_client_settings_exit_with_misconfigured(client: str, capsys: pytest.CaptureFixture[str]) -> None:
    def main(settings: Settings, _stop: Stop) -> None:
        codec = Codec(settings)
        EventProducer(NOWHERE, codec, "test") if client == "producer" else EventConsumer(NOWHERE, codec)

    with pytest.raises(SystemExit) as exit_:
        run("gateway", main)
    assert exit_.value.code == MISCONFIGURED
    (line,) = capsys.readouterr().err.splitlines()
    assert "settings: kafka:" in line
    assert "ssl.ca.location" in line


def test_the_log_masks_credentials_of_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("gateway")
    logging.getLogger("a").warning("no answer from %s", "https://user:hunter2@registry")
    assert capsys.readouterr().err.endswith("no answer from https://********@registry\n")


@pytest.mark.parametrize("error", [Fatal, KafkaUnavailable, RegistryNotReady])
def test_a_fatal_error_is_one_log_line(error: type[Fatal], capsys: pytest.CaptureFixture[str]) -> None:
    def main(_settings: Settings, _stop: Stop) -> None:
        raise error("no answer: start it")

    with pytest.raises(SystemExit) as exit_:
        run("gateway", main)
    assert exit_.value.code == FAULT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("no answer: start it")


def test_the_metrics_port_says_whether_the_process_is_ready() -> None:
    faults = ["no partitions yet", ""]
    port = serve_metrics(MetricsSettings(port=free_block(1)), lambda: faults.pop(0))
    url = f"http://127.0.0.1:{port}"
    not_ready, ready = httpx.get(f"{url}/ready"), httpx.get(f"{url}/ready")
    assert (not_ready.status_code, not_ready.text) == (503, "no partitions yet\n")
    assert (ready.status_code, ready.text) == (200, "ok\n")
    assert "python_info" in httpx.get(f"{url}/metrics").text
    with pytest.raises(Fatal, match=f"metrics port {port}.*STEPSTREAM_METRICS_PORT"):
        serve_metrics(MetricsSettings(port=port))
