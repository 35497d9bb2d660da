"""Brokers are named in every form that librdkafka takes; settings that contradict each other are refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from stepstream.config import KafkaSettings
from stepstream.topics.client import client_config

OAUTH = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "OAUTHBEARER",
    "oauth_token_url": "http://id/token",
    "oauth_client_id": "govern",
}


@pytest.mark.parametrize(
    ("text", "brokers"),
    [
        ("k1:9093", ["k1:9093"]),
        ("k1:9093, k2 k3,,", ["k1:9093", "k2:9092", "k3:9092"]),
        ("127.0.0.1", ["127.0.0.1:9092"]),
        ("[::1]:9093,[fe80::1]", ["[::1]:9093", "[fe80::1]:9092"]),
        ("::1", ["[::1]:9092"]),
        ("PLAINTEXT://k1,plaintext://[::1]:1", ["k1:9092", "[::1]:1"]),
    ],
)
def test_every_form_of_addresses_is_one_for_all_clients(text: str, brokers: list[str]) -> None:
    kafka = KafkaSettings(bootstrap=text)
    assert kafka.brokers == brokers
    assert client_config(kafka)["bootstrap.servers"] == ",".join(brokers)


@pytest.mark.parametrize("text", ["", " , ", "k1:port", "k1:99999", "[::1", "http//k1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="broker"):
        KafkaSettings(bootstrap=text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bootstrap": "SSL://k1"}, "bootstrap names SSL for k1:9092, but security_protocol is PLAINTEXT"),
        ({"min_insync_replicas": 2}, "above 1 of replication"),
        ({"ssl_key_location": "key.pem"}, "needs ssl_certificate_location"),
        ({"security_protocol": "SASL_SSL"}, "SCRAM-SHA-512 needs sasl_username"),
        ({**OAUTH, "oauth_client_id": ""}, "OAUTHBEARER needs oauth_token_url and oauth_client_id"),
        ({"sasl_mechanism": "GSSAPI"}, "SCRAM-SHA-256"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        KafkaSettings(**fields)


def test_mutual_tls_is_passed_on() -> None:
    kafka = KafkaSettings(
        bootstrap="SSL://k1", security_protocol="SSL", ssl_ca_location="ca", ssl_certificate_location="both"
    )
    config = client_config(kafka)
    assert config["security.protocol"] == "SSL"
    assert config["ssl.ca.location"] == "ca"
    assert config["ssl.certificate.location"] == config["ssl.key.location"] == "both"
    assert not [name for name in config if name.startswith("sasl")]


def test_tokens_are_passed_on_without_user_and_password() -> None:
    config = client_config(KafkaSettings(**OAUTH, oauth_client_secret="s"))
    assert config["sasl.oauthbearer.token.endpoint.url"] == "http://id/token"
    assert config["sasl.oauthbearer.client.secret"] == "s"
    assert "sasl.username" not in config


def test_an_open_cluster_gets_no_credentials() -> None:
    config = client_config(KafkaSettings(sasl_username="u", sasl_password="p", ssl_ca_location="ca"))
    assert not [name for name in config if name.startswith(("sasl", "ssl"))]
