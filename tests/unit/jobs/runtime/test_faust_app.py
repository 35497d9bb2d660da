"""Faust gets the credentials of the settings; the logic of the jobs imports without Faust."""

import ssl
import subprocess
import sys

import faust
import pytest

from stepstream.config import KafkaSettings
from stepstream.jobs.runtime.faust_app import credentials

PURE = (
    "redaction",
    "governance.govern_step",
    "governance.validation",
    "labels.sequences",
    "labels.build_label",
    "labels.trajectory_state",
    "rewards.terms",
    "statistics.cohorts",
    "clickhouse.rows",
)


def test_an_open_cluster_needs_no_credentials() -> None:
    assert credentials(KafkaSettings()) is None


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_sasl_is_passed_on(protocol: str) -> None:
    given = credentials(KafkaSettings(security_protocol=protocol, sasl_username="u", sasl_password="p"))
    assert isinstance(given, faust.SASLCredentials)
    assert (given.username, given.password) == ("u", "p")
    assert given.mechanism is not None
    assert given.mechanism.value == "SCRAM-SHA-512"
    assert given.protocol.value == protocol


def test_tls_alone_checks_the_brokers_certificate() -> None:
    given = credentials(KafkaSettings(security_protocol="SSL"))
    assert isinstance(given, faust.SSLCredentials)
    assert given.context.verify_mode is ssl.CERT_REQUIRED


def test_the_logic_imports_without_faust() -> None:
    modules = ", ".join(f"stepstream.jobs.{name}" for name in PURE)
    heavy = "{'faust', 'aiokafka', 'rocksdict', 'clickhouse_connect'}"
    code = f"import sys, {modules}; print(*sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []
