"""Settings of every Kafka client: addresses, names in the cluster, replicas and security."""

from typing import Literal, Self

from pydantic import SecretStr, model_validator

from stepstream.config.base import Section, setting
from stepstream.config.bootstrap import parse_bootstrap


class KafkaSettings(Section):
    """Connection of every client to the Kafka cluster."""

    bootstrap: str = setting(
        "127.0.0.1:9092",
        "Brokers as librdkafka takes them, separated by commas or spaces: `host:port`, `host` (port 9092), "
        "`[IPv6]:port`, and with the protocol in front, as `SSL://host:port`.",
    )
    prefix: str = setting(
        "",
        "Prefix of the names of topics, consumer groups and transactional ids in the cluster and of subjects in the "
        "registry, as `blue.`; Stepstreams with different prefixes share a cluster.",
        pattern=r"^([A-Za-z0-9_-]{1,100}\.)?$",
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "PLAINTEXT", "Security protocol of the connections."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = setting(
        "SCRAM-SHA-512", "SASL mechanism; ignored without SASL in `security_protocol`."
    )
    sasl_username: str = setting("", "SASL user name, for PLAIN and SCRAM.")
    sasl_password: SecretStr = setting(SecretStr(""), "SASL password; never printed.")
    oauth_token_url: str = setting(
        "", "Address at which OAUTHBEARER gets tokens with the client's credentials (OAuth 2.0, RFC 6749, 4.4)."
    )
    oauth_client_id: str = setting("", "Client id for the token.")
    oauth_client_secret: SecretStr = setting(SecretStr(""), "Client secret for the token; never printed.")
    oauth_scope: str = setting("", "Scope of the token; empty: the server's default.")
    oauth_ca_location: str = setting("", "File of the token server's certificate authority; empty: the system's.")
    ssl_ca_location: str = setting("", "File of the brokers' certificate authority; empty: the system's.")
    ssl_certificate_location: str = setting("", "File of the client's certificate for mutual TLS.")
    ssl_key_location: str = setting("", "File of its key; empty: the certificate's file has it.")
    ssl_key_password: SecretStr = setting(SecretStr(""), "Password of the key; never printed.")
    replication: int = setting(1, "Replicas of each topic that Stepstream creates; use 3 in production.", ge=1)
    min_insync_replicas: int = setting(
        0,
        "Replicas of these topics that must have a record before it is acknowledged; 0: 2 with 3 replicas or more, "
        "else 1.",
        ge=0,
    )
    deadline_s: float = setting(60.0, "Time to retry an unreachable broker at start.", unit="s", gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Check what belongs together: a client would report it late, or only as brokers that do not answer."""
        for broker in parse_bootstrap(self.bootstrap):
            if broker.protocol and broker.protocol != self.security_protocol:
                raise ValueError(
                    f"bootstrap names {broker.protocol} for {broker}, but security_protocol is "
                    f"{self.security_protocol}: set both to the same"
                )
        if self.min_insync_replicas > self.replication:
            raise ValueError(
                f"min_insync_replicas is {self.min_insync_replicas}, above {self.replication} of replication: no "
                "record could be written"
            )
        if (self.ssl_key_location or self.ssl_key_password.get_secret_value()) and not self.ssl_certificate_location:
            raise ValueError("ssl_key_location needs ssl_certificate_location: set both")
        if self.uses_sasl:
            self._check_sasl()
        return self

    def _check_sasl(self) -> None:
        if self.uses_oauth and not (self.oauth_token_url and self.oauth_client_id):
            raise ValueError("OAUTHBEARER needs oauth_token_url and oauth_client_id: set both")
        if not self.uses_oauth and not self.sasl_username:
            raise ValueError(f"{self.sasl_mechanism} needs sasl_username: set it and sasl_password")

    @property
    def brokers(self) -> list[str]:
        """Brokers as `host:port`, of IPv6 in brackets: the form that all clients take."""
        return [str(broker) for broker in parse_bootstrap(self.bootstrap)]

    @property
    def uses_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.security_protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """True if clients authenticate by SASL."""
        return self.security_protocol.startswith("SASL")

    @property
    def uses_oauth(self) -> bool:
        """True if clients authenticate by tokens."""
        return self.uses_sasl and self.sasl_mechanism == "OAUTHBEARER"

    @property
    def in_sync_replicas(self) -> int:
        """`min.insync.replicas` of the topics."""
        return self.min_insync_replicas or (2 if self.replication >= 3 else 1)
