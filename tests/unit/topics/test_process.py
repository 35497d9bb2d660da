"""What every process does alike: how it ends where its settings cannot be used, and what its log does not tell."""

import logging
import signal
from collections.abc import Iterator

import pytest

from stepstream.config import KafkaSettings, Settings
from stepstream.core.process import MISCONFIGURED, Stop, run, set_up_logging
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
def test_settings_that_no_client_can_have_are_misconfigured(client: str, capsys: pytest.CaptureFixture[str]) -> None:
    def main(settings: Settings, _stop: Stop) -> None:
        codec = Codec(settings.schema_registry)
        EventProducer(NOWHERE, codec, "test") if client == "producer" else EventConsumer(NOWHERE, codec)

    with pytest.raises(SystemExit) as ended:
        run("gateway", main)
    assert ended.value.code == MISCONFIGURED
    (line,) = capsys.readouterr().err.splitlines()
    assert "settings: kafka:" in line
    assert "ssl.ca.location" in line


def test_log_has_no_credentials_of_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("gateway")
    logging.getLogger("a").warning("no answer from %s", "https://user:hunter2@registry")
    assert capsys.readouterr().err.endswith("no answer from https://********@registry\n")
