"""The registry client against a server with scripted answers."""

import base64
import json
import logging
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from pydantic import SecretStr
from running_server import running
from token_server import token_server

from stepstream.config import SchemaRegistrySettings, SettingsError
from stepstream.topics.registry_client import ATTEMPTS, RegistryClient, RegistryRefused, RegistryUnreachable

FAULT = (503, b"{}")


class Registry:
    """Answers the n-th request with the n-th answer and repeats the last one; status 0 closes the connection."""

    def __init__(self, address: str, answers: list[tuple[int, bytes]]) -> None:
        self.address = address
        self.answers = answers
        self.requests: list[tuple[str, str, Any]] = []
        self.authorization: str | None = None
        self.location = ""


@contextmanager
def answering(*answers: tuple[int, bytes], tls: ssl.SSLContext | None = None) -> Iterator[Registry]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"] or 0))
            registry.requests.append((self.command, self.path, json.loads(body) if body else None))
            registry.authorization = self.headers["authorization"]
            status, answer = registry.answers.pop(0) if len(registry.answers) > 1 else registry.answers[0]
            if not status:
                return
            self.send_response(status)
            if registry.location:
                self.send_header("location", registry.location)
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = answer

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    scheme = "http" if tls is None else "https"
    registry = Registry(f"{scheme}://127.0.0.1:{server.server_port}", list(answers))
    with running(server):
        yield registry


def client(*registries: Registry, **fields: Any) -> RegistryClient:
    fields = {"url": ",".join(registry.address for registry in registries), "timeout_s": 5.0, **fields}
    return RegistryClient(SchemaRegistrySettings(**fields), first_wait_s=0)


def test_each_call_sends_its_request() -> None:
    found = json.dumps({"subject": "a/b c", "version": 1, "id": 7, "schema": '"int"'}).encode()
    with answering(
        (200, found), (200, found), (200, found), (200, b'{"compatibility": "FULL"}'), (200, b'["a"]')
    ) as registry:
        asking = client(registry)
        assert asking.look_up("a/b c", '"int"') == 7
        assert asking.register("d/e f", '"int"') == 7
        assert asking.schema(7) == '"int"'
        asking.set_compatibility("a/b c", "FULL")
        assert asking.subjects() == ["a"]
    sent = [
        (method, path.partition("?")[0], body and next(iter(body.values()))) for method, path, body in registry.requests
    ]
    assert sent == [
        ("POST", "/subjects/a%2Fb%20c", '"int"'),
        ("POST", "/subjects/d%2Fe%20f/versions", '"int"'),
        ("GET", "/schemas/ids/7", None),
        ("PUT", "/config/a%2Fb%20c", "FULL"),
        ("GET", "/subjects", None),
    ]


@pytest.mark.parametrize(
    ("status", "body", "code", "says"),
    [
        (409, b'{"error_code": 40901, "message": "too different"}', 40901, "too different"),
        (404, b"<html>not here</html>", -1, "not here"),
        (401, b'{"message": "who are you"}', -1, "who are you"),
    ],
)
def test_permanent_errors_raise_at_once(status: int, body: bytes, code: int, says: str) -> None:
    with answering((status, body)) as registry, pytest.raises(RegistryRefused, match=says) as refusal:
        client(registry).subjects()
    assert (refusal.value.status, refusal.value.code) == (status, code)
    assert len(registry.requests) == 1


@pytest.mark.parametrize("fault", [FAULT, (429, b""), (0, b"")])
def test_transient_errors_are_retried(fault: tuple[int, bytes]) -> None:
    with answering(fault, fault, (200, b"[]")) as registry:
        assert client(registry).subjects() == []
    assert len(registry.requests) == 3


def test_a_lasting_error_raises_after_all_attempts() -> None:
    with answering((503, b'{"error_code": 50301, "message": "resting"}')) as registry:
        with pytest.raises(RegistryRefused, match="resting"):
            client(registry).subjects()
        assert len(registry.requests) == ATTEMPTS
    with pytest.raises(RegistryUnreachable, match="refused"):
        client(registry).subjects()


def test_the_next_instance_answers_for_a_failing_one() -> None:
    with answering(FAULT) as first, answering((200, b'["a"]')) as second:
        assert client(first, second).subjects() == ["a"]
    assert len(first.requests) == ATTEMPTS


@pytest.mark.parametrize("place", ["setting", "address"])
def test_credentials_come_from_the_setting_or_the_address(place: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with answering((200, b"[]")) as registry:
        if place == "setting":
            client(registry, user_info=SecretStr("me:a:b@c")).subjects()
        else:
            client(registry, url=registry.address.replace("//", "//me:a%3Ab%40c@")).subjects()
    assert registry.authorization == "Basic " + base64.b64encode(b"me:a:b@c").decode()
    assert "me:" not in caplog.text


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize(
    "credentials",
    [{"user_info": SecretStr("me:secret")}, {"bearer_token": SecretStr("secret")}],
    ids=["basic", "bearer"],
)
def test_a_redirect_carries_no_credentials_to_another_host(status: int, credentials: dict[str, SecretStr]) -> None:
    with answering((200, b"[]")) as other, answering((status, b"")) as registry:
        registry.location = f"{other.address}/subjects"
        with pytest.raises(RegistryRefused) as refusal:
            client(registry, **credentials).subjects()
    assert refusal.value.status == status
    assert registry.authorization
    assert other.requests == []


def test_a_bearer_token_comes_from_the_setting() -> None:
    with answering((200, b"[]")) as registry:
        client(registry, bearer_token=SecretStr("t0ken")).subjects()
    assert registry.authorization == "Bearer t0ken"


def test_tokens_come_from_the_token_server_and_are_renewed_before_they_end() -> None:
    with token_server() as tokens, answering((200, b"[]")) as registry:
        calling = client(registry, **tokens.settings)
        assert tokens.given == 0
        for _ in range(3):
            calling.subjects()
            assert registry.authorization == "Bearer token-1"
        tokens.life_s = 0.0
        other = client(registry, **tokens.settings)
        for number in (2, 3):
            other.subjects()
            assert registry.authorization == f"Bearer token-{number}"


def test_a_token_server_that_refuses_is_named_with_the_settings_to_check() -> None:
    with token_server() as tokens, answering((200, b"[]")) as registry:
        tokens.refuses = True
        with pytest.raises(RegistryUnreachable, match=r"gave no token .*STEPSTREAM_SCHEMA_REGISTRY_OAUTH_TOKEN_URL"):
            client(registry, **tokens.settings).subjects()
        assert registry.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        {"oauth_token_url": "http://id/token"},
        {"oauth_token_url": "http://id/token", "oauth_client_id": "me", "bearer_token": SecretStr("t0ken")},
        {"oauth_token_url": "http://id/token", "oauth_client_id": "me", "user_info": SecretStr("me:secret")},
        {"user_info": SecretStr("nobody")},
        {"user_info": SecretStr("me:secret"), "bearer_token": SecretStr("t0ken")},
        {"url": "http://me:secret@127.0.0.1:1", "bearer_token": SecretStr("t0ken")},
        {"key_location": "key.pem"},
    ],
)
def test_contradicting_settings_raise(fields: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"schema.registry"):
        RegistryClient(SchemaRegistrySettings(**fields))


@pytest.mark.parametrize("name", ["ca_location", "certificate_location"])
def test_a_missing_certificate_is_an_error_of_the_settings(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=rf"schema_registry\.{name}"):
        RegistryClient(SchemaRegistrySettings(**{name: str(tmp_path / "none.pem")}))


@pytest.mark.parametrize("answer", [b"", b"{}", b"<html>"])
def test_an_unreadable_answer_raises(answer: bytes) -> None:
    with answering((200, answer)) as registry:
        with pytest.raises(ValueError, match=r"registry's answer|Expecting value"):
            client(registry).look_up("a", '"int"')
        with pytest.raises(ValueError, match=r"registry's answer|Expecting value"):
            client(registry).schema(7)


def test_the_stock_client_is_imported_at_the_first_call() -> None:
    code = (
        "import sys; from stepstream.config import Settings\n"
        "from stepstream.topics.codec import Codec; Codec(Settings())\n"
        "print([name for name in ('authlib', 'httpx2', 'confluent_kafka.schema_registry') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate of 127.0.0.1 with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "registry")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "registry.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem.write_bytes(private + certificate.public_bytes(Encoding.PEM))
    return pem


def tls_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_tls_with_the_environments_certificates(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering((200, b"[]"), tls=tls_context(certificate)) as registry:
        with pytest.raises(RegistryUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            client(registry).subjects()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert client(registry).subjects() == []


def test_tls_with_the_certificates_of_the_settings(certificate: Path) -> None:
    with answering((200, b"[]"), tls=tls_context(certificate)) as registry:
        assert client(registry, ca_location=str(certificate)).subjects() == []


def test_mutual_tls_with_the_certificate_of_the_settings(certificate: Path) -> None:
    context = tls_context(certificate)
    context.load_verify_locations(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    with answering((200, b"[]"), tls=context) as registry:
        with pytest.raises(RegistryUnreachable):
            client(registry, ca_location=str(certificate)).subjects()
        both = {"ca_location": str(certificate), "certificate_location": str(certificate)}
        assert client(registry, **both).subjects() == []
