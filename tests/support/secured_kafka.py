"""Run one Kafka node with TLS, every kind of authentication, and an authorizer that grants nothing by default."""

import base64
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

import orjson
from certificates import Authority
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from kafka_nodes import KafkaNodes
from waiting import TIMEOUT_S

from stepstream.config import KafkaSettings, Settings
from stepstream.topics.acls import Acl
from stepstream.topics.client import client_config

PASSWORD = "a password with $igns"
PLAIN_USER = "plain"
_MODULES = "org.apache.kafka.common.security"
_TYPES = {"topic": "TOPIC", "group": "GROUP", "transactional-id": "TRANSACTIONAL_ID"}


class SecuredKafka:
    """The node, its certificate authority and a token server; as a context manager, started and stopped.

    The first listener takes users with passwords or tokens over TLS, the second takes certificates.
    """

    def __init__(self, base: Settings, folder: Path) -> None:
        """Make the certificates; nothing is started yet."""
        self.authority = Authority(folder / "certificates")
        self._node = self.authority.issue("broker")
        self._cluster = KafkaNodes(base, folder, 1, self._properties)
        self._tokens = TokenServer()
        self._admin: AdminClient | None = None

    def _properties(self, cluster: KafkaNodes, node: int) -> dict[str, str]:
        users, certificates, controller = (f"127.0.0.1:{cluster.port(node, which)}" for which in range(3))
        sasl = "listener.name.sasl_ssl"
        return {
            "listeners": f"SASL_SSL://{users},SSL://{certificates},CONTROLLER://{controller}",
            "advertised.listeners": f"SASL_SSL://{users},SSL://{certificates}",
            "listener.security.protocol.map": "SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:SSL",
            "inter.broker.listener.name": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._node),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.file),
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN,OAUTHBEARER",
            f"{sasl}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
            f"{sasl}.plain.sasl.jaas.config": (
                f'{_MODULES}.plain.PlainLoginModule required user_{PLAIN_USER}="{PASSWORD}";'
            ),
            # Tokens without a signature: enough to see that clients get and send them.
            f"{sasl}.oauthbearer.sasl.jaas.config": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:CN=broker",
        }

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        try:
            self._tokens.start()
            self._cluster.wait_ready(self.certificate("broker"), 1)
            self._admin = AdminClient(client_config(self.certificate("broker")))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tokens.stop()
        self._cluster.stop()

    @property
    def admin(self) -> AdminClient:
        """Client of a user with all rights."""
        assert self._admin is not None
        return self._admin

    def log(self) -> str:
        """Return the broker's log."""
        return self._cluster.log(1)

    def add_users(self, *names: str) -> None:
        """Create users that authenticate by SCRAM, with `PASSWORD`."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        alterations: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(name, info, PASSWORD.encode()) for name in names
        ]
        for future in self.admin.alter_user_scram_credentials(alterations).values():
            future.result(TIMEOUT_S)

    def grant(self, principal: str, *acls: Acl) -> None:
        """Give rights to a principal."""
        bindings = [
            AclBinding(
                ResourceType[_TYPES[acl.resource]],
                acl.name,
                ResourcePatternType.PREFIXED if acl.is_prefix else ResourcePatternType.LITERAL,
                principal,
                "*",
                AclOperation[_operation(operation)],
                AclPermissionType.ALLOW,
            )
            for acl in acls
            for operation in acl.operations
        ]
        for future in self.admin.create_acls(bindings).values():
            future.result(TIMEOUT_S)

    def scram(self, user: str) -> KafkaSettings:
        """Return the connection of a user with a password."""
        return self._settings(sasl_mechanism="SCRAM-SHA-512", sasl_username=user, sasl_password=PASSWORD)

    def plain(self) -> KafkaSettings:
        """Return the connection of the user that the broker's configuration names."""
        return self._settings(sasl_mechanism="PLAIN", sasl_username=PLAIN_USER, sasl_password=PASSWORD)

    def token(self, client: str) -> KafkaSettings:
        """Return the connection of a client that gets tokens."""
        return self._settings(
            sasl_mechanism="OAUTHBEARER",
            oauth_token_url=self._tokens.url,
            oauth_client_id=client,
            oauth_client_secret=PASSWORD,
            oauth_scope="kafka",
        )

    def certificate(self, name: str, password: str = "") -> KafkaSettings:
        """Return the connection of a client with a certificate; its principal is `User:CN=name`."""
        return KafkaSettings(
            bootstrap=f"SSL://{self._cluster.bootstrap(1)}",
            security_protocol="SSL",
            ssl_ca_location=str(self.authority.file),
            ssl_certificate_location=str(self.authority.issue(name, password)) if name != "broker" else str(self._node),
            ssl_key_password=password,
        )

    def _settings(self, **fields: Any) -> KafkaSettings:
        return KafkaSettings(
            bootstrap=f"SASL_SSL://{self._cluster.bootstrap()}",
            security_protocol="SASL_SSL",
            ssl_ca_location=str(self.authority.file),
            **fields,
        )


def _operation(name: str) -> str:
    """Return confluent-kafka's name of an operation: `AlterConfigs` is `ALTER_CONFIGS`."""
    return "".join(f"_{letter}" if letter.isupper() and i else letter for i, letter in enumerate(name)).upper()


class TokenServer:
    """Gives a token without a signature to every client that knows `PASSWORD`."""

    def __init__(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                scheme, _, encoded = self.headers.get("Authorization", "").partition(" ")
                client, _, secret = base64.b64decode(encoded).decode().partition(":")
                allowed = scheme == "Basic" and secret.replace("%20", " ").replace("%24", "$") == PASSWORD
                allowed &= form == {"grant_type": ["client_credentials"], "scope": ["kafka"]}
                body = orjson.dumps({"access_token": _token(client), "expires_in": 600} if allowed else {"error": "no"})
                self.send_response(200 if allowed else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"

    def start(self) -> None:
        """Serve in a thread."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()


def _token(subject: str) -> str:
    now = int(time.time())
    parts = {"alg": "none"}, {"sub": subject, "iat": now, "exp": now + 600, "scope": "kafka"}
    texts = [base64.urlsafe_b64encode(orjson.dumps(part)).decode().rstrip("=") for part in parts]
    return ".".join([*texts, ""])
