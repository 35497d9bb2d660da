"""Check that a command uses a broker that listens but answers late."""

import socket
from pathlib import Path

import pytest

from stepstream.config import KafkaSettings, PathsSettings, Settings
from stepstream.embedded import stack
from stepstream.embedded.ready import KafkaReady
from stepstream.embedded.stack import ensure_broker


def test_a_broker_that_answers_late_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = iter([False, False, True])
    monkeypatch.setattr(KafkaReady, "__call__", lambda _: next(answers))
    monkeypatch.setattr(stack, "Stack", None)
    monkeypatch.setattr(stack, "resolve_addresses", lambda settings: settings)  # it takes a given address as external
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = Settings(
            kafka=KafkaSettings(bootstrap=f"127.0.0.1:{server.getsockname()[1]}"), paths=PathsSettings(data=tmp_path)
        )
        with ensure_broker(settings, pytest.fail) as resolved:
            assert resolved.kafka.bootstrap == settings.kafka.bootstrap
    assert list(answers) == []
