"""The registry client against a server with scripted answers."""

import base64
import json
import ssl
import threading
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

from stepstream.config import SchemaRegistrySettings, SettingsError
from stepstream.topics.registry_client import ATTEMPTS, RegistryClient, RegistryRefused

FAULT = (503, b"{}")


class Registry:
    """Answers the n-th request with the n-th answer and repeats the last one; status 0 closes the connection."""

    def __init__(self, address: str, answers: list[tuple[int, bytes]]) -> None:
        self.address = address
        self.answers = answers
        self.requests: list[tuple[str, str, Any]] = []
        self.authorization: str | None = None


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
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = answer

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        registry = Registry(f"{scheme}://127.0.0.1:{server.server_port}", list(answers))
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()


def client(*registries: Registry, waits: list[float] | None = None, **fields: Any) -> RegistryClient:
    fields = {"url": ",".join(registry.address for registry in registries), "timeout_s": 5.0, **fields}
    return RegistryClient(SchemaRegistrySettings(**fields), list[float]().append if waits is None else waits.append)


def test_each_call_sends_its_request() -> None:
    found = json.dumps({"id": 7, "schema": '"int"'}).encode()
    with answering((200, found), (200, found), (200, found), (200, b"{}"), (200, b'["a", "b"]')) as registry:
        asking = client(registry)
        assert asking.look_up("a/b c", '"int"') == 7
        assert asking.register("a/b c", '"int"') == 7
        assert asking.schema(7) == '"int"'
        asking.set_compatibility("a/b c", "FULL")
        assert asking.subjects() == ["a", "b"]
    assert registry.requests == [
        ("POST", "/subjects/a%2Fb%20c", {"schema": '"int"'}),
        ("POST", "/subjects/a%2Fb%20c/versions", {"schema": '"int"'}),
        ("GET", "/schemas/ids/7", None),
        ("PUT", "/config/a%2Fb%20c", {"compatibility": "FULL"}),
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
    waits: list[float] = []
    with answering(fault, fault, (200, b"[]")) as registry:
        assert client(registry, waits=waits).subjects() == []
    assert len(registry.requests) == 3
    assert [0 <= wait <= longest for wait, longest in zip(waits, (1.0, 2.0), strict=True)] == [True, True]


def test_a_lasting_error_raises_after_all_attempts() -> None:
    with answering((503, b'{"error_code": 50301, "message": "resting"}')) as registry:
        with pytest.raises(RegistryRefused, match="resting"):
            client(registry).subjects()
        assert len(registry.requests) == ATTEMPTS
    with pytest.raises(OSError, match="refused"):
        client(registry).subjects()


def test_the_next_instance_answers_for_a_failing_one() -> None:
    with answering(FAULT) as first, answering((200, b'["a"]')) as second:
        assert client(first, second).subjects() == ["a"]
    assert len(first.requests) == ATTEMPTS


@pytest.mark.parametrize("place", ["setting", "address"])
def test_credentials_come_from_the_setting_or_the_address(place: str) -> None:
    with answering((200, b"[]")) as registry:
        if place == "setting":
            client(registry, user_info=SecretStr("me:a:b@c")).subjects()
        else:
            client(registry, url=registry.address.replace("//", "//me:a%3Ab%40c@")).subjects()
    assert registry.authorization == "Basic " + base64.b64encode(b"me:a:b@c").decode()


def test_malformed_credentials_raise() -> None:
    with pytest.raises(SettingsError, match=r"schema.registry"):
        RegistryClient(SchemaRegistrySettings(user_info=SecretStr("nobody")))


def test_tls_with_the_environments_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    with answering((200, b"[]"), tls=tls) as registry:
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            client(registry).subjects()
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        assert client(registry).subjects() == []
