"""What every process asks for: where its data lies, and the log, the registry and the store that it talks to."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from stepstream.config.base import HttpAddress, Section


class PathsSettings(Section):
    """Where this installation keeps what it may lose and what it may not."""

    data: Path = Field(Path("var"), description="Folder of all local data, logs and reports.")


class KafkaSettings(Section):
    """The cluster that holds the log."""

    bootstrap: str = Field("127.0.0.1:9092", min_length=1, description="host:port list of the brokers.")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="How clients connect."
    )
    sasl_mechanism: str = Field("SCRAM-SHA-512", description="Used when security_protocol has SASL in it.")
    sasl_username: str = Field("", description="User name for SASL.")
    sasl_password: SecretStr = Field(SecretStr(""), description="Password for SASL; never printed.")
    ssl_ca_location: str = Field("", description="File of the certificate authority; empty: the system's.")
    replication: int = Field(1, ge=1, description="Replicas of each topic that we create; 3 in production.")
    deadline_s: float = Field(60.0, gt=0, description="Seconds to keep retrying an unreachable broker at start.")


class SchemaRegistrySettings(Section):
    """A Confluent-compatible schema registry."""

    url: HttpAddress = Field("http://127.0.0.1:8081", description="Base address.")
    user_info: SecretStr = Field(SecretStr(""), description="user:password for basic auth; never printed.")
    timeout_s: float = Field(10.0, gt=0, description="Seconds allowed for one call.")
    deadline_s: float = Field(60.0, gt=0, description="Seconds to keep retrying an unreachable registry.")


class ClickHouseSettings(Section):
    """The analytics store, over ClickHouse's HTTP protocol."""

    url: HttpAddress = Field("http://127.0.0.1:8123", description="Base address.")
    database: str = Field("stepstream", description="Database that holds our tables and views.")
    user: str = Field("default", description="User name.")
    password: SecretStr = Field(SecretStr(""), description="Password; never printed.")
    deadline_s: float = Field(60.0, gt=0, description="Seconds to keep retrying an unreachable store at start.")


class MetricsSettings(Section):
    """Prometheus: processes that serve HTTP show `/metrics` there, the others on a port of their own."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(0, ge=0, le=65535, description="Port of this process; 0: a free one, which is logged.")


class SealSettings(Section):
    """Encryption of what is personal in the log, under keys that erasure destroys."""

    master_key: SecretStr = Field(
        SecretStr(""),
        description="Secret that wraps the keys of persons; empty: a random one kept in DATA/secrets. Programs on "
        "several machines need the same one; losing it makes everything sealed unreadable.",
    )
