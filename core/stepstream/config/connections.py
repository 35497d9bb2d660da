"""Settings of local data, topics, the schema registry, ClickHouse, metrics and sealing: every process reads them."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, SecretStr

from stepstream.config.base import HttpAddress, OptionalHttpAddress, Section, setting
from stepstream.config.master_keys import parse_master_keys


class PathsSettings(Section):
    """Local data."""

    data: Path = setting(Path("var"), "Folder of all local data, logs and reports; `DATA` in this page.")
    shared_memory: Path = setting(
        Path("/dev/shm"),
        "File system in memory through which a learner hands versions to workers of the same user on this machine; see "
        "`learner.shared_memory_bytes`.",
    )


class TopicsSettings(Section):
    """Partitions and retention of the log, which `stepstream topics apply` sets; see docs/operations.md."""

    partitions: int = setting(
        8,
        "Partitions of the topics whose keys have state, when they are created. It bounds the workers of a job, and "
        "cannot change later.",
        ge=1,
        le=1024,
    )
    steps_retention_s: float = setting(
        0.0, "Age at which Kafka deletes records of `steps` and `feedback`; 0: never.", unit="s", ge=0
    )
    governed_retention_s: float = setting(
        0.0,
        "Age at which Kafka deletes records of `governed-steps`, `governed-feedback` and `closures`; 0: never.",
        unit="s",
        ge=0,
    )
    labels_retention_s: float = setting(
        0.0, "Age at which Kafka deletes records of `labeled-trajectories`; 0: never.", unit="s", ge=0
    )


class SchemaRegistrySettings(Section):
    """Connection to a Confluent-compatible schema registry."""

    url: HttpAddress = setting("http://127.0.0.1:8081", "Base address; commas separate several instances.")
    user_info: SecretStr = setting(
        SecretStr(""),
        "`user:password` for basic authentication; never printed. The embedded registry requires it of its callers.",
    )
    bearer_token: SecretStr = setting(SecretStr(""), "Token for bearer authentication; never printed.")
    oauth_token_url: OptionalHttpAddress = setting(
        "",
        "Address at which to get tokens with the client's credentials (OAuth 2.0, RFC 6749, 4.4), instead of "
        "`bearer_token`.",
    )
    oauth_client_id: str = setting("", "Client id for the token.")
    oauth_client_secret: SecretStr = setting(SecretStr(""), "Client secret for the token; never printed.")
    oauth_scope: str = setting("", "Scope of the token; empty: the server's default.")
    oauth_ca_location: str = setting("", "File of the token server's certificate authority; empty: the system's.")
    logical_cluster: str = setting("", "Logical cluster of the token, which Confluent Cloud requires.")
    ca_location: str = setting(
        "", "File or folder of the certificate authority; empty: SSL_CERT_FILE, SSL_CERT_DIR or Mozilla's list."
    )
    certificate_location: str = setting("", "File of the client's certificate for mutual TLS.")
    key_location: str = setting("", "File of its key; empty: the certificate's file has it.")
    key_password: SecretStr = setting(SecretStr(""), "Password of the key; never printed.")
    timeout_s: float = setting(10.0, "Timeout of one call.", unit="s", gt=0)
    deadline_s: float = setting(60.0, "Time to retry an unreachable registry at start.", unit="s", gt=0)


class ClickHouseSettings(Section):
    """Connection to ClickHouse, or to the embedded store, over ClickHouse's HTTP protocol."""

    url: HttpAddress = setting("http://127.0.0.1:8123", "Base address.")
    database: str = setting("stepstream", "Database of Stepstream's tables and views.")
    cluster: str = setting(
        "",
        "Cluster whose replicas hold the tables; empty: one server. Its servers define the macros `shard`, which is "
        "equal on all, and `replica`. Set it before the first `stepstream store migrate`.",
    )
    user: str = setting("default", "User that writes.")
    password: SecretStr = setting(
        SecretStr(""),
        "Its password; never printed. Empty: of the embedded store, a random one, created once in "
        "`DATA/secrets/clickhouse.password`.",
    )
    reader_user: str = setting(
        "",
        "User that only reads, for the console and reports; empty: `reader` of the embedded store, `clickhouse.user` "
        "of another ClickHouse.",
    )
    reader_password: SecretStr = setting(
        SecretStr(""),
        "Its password; never printed. Empty: of the embedded store, a random one, created once in "
        "`DATA/secrets/clickhouse-reader.password`.",
    )
    access_token: SecretStr = setting(
        SecretStr(""), "Token for bearer authentication, instead of user and password; never printed."
    )
    oauth_token_url: OptionalHttpAddress = setting(
        "",
        "Address at which to get tokens with the client's credentials (OAuth 2.0, RFC 6749, 4.4), instead of "
        "`access_token`.",
    )
    oauth_client_id: str = setting("", "Client id for the token.")
    oauth_client_secret: SecretStr = setting(SecretStr(""), "Client secret for the token; never printed.")
    oauth_scope: str = setting("", "Scope of the token; empty: the server's default.")
    oauth_ca_location: str = setting("", "File of the token server's certificate authority; empty: the system's.")
    ca_location: str = setting("", "File of the certificate authority; empty: Mozilla's list.")
    certificate_location: str = setting(
        "", "File of the client's certificate for mutual TLS; without a password, it authenticates the user."
    )
    key_location: str = setting("", "File of its key; empty: the certificate's file has it.")
    refresh_s: int = setting(
        10,
        "Time between two refreshes of the tables by hour and day. Each costs an idle store up to a tenth of "
        "a second of CPU a table. Takes effect with `stepstream store migrate`.",
        unit="s",
        ge=1,
        le=60,
    )
    deadline_s: float = setting(60.0, "Time to retry an unreachable store at start.", unit="s", gt=0)


class MetricsSettings(Section):
    """Prometheus metrics of processes that serve no HTTP. The others serve `/metrics` on their own port."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(0, "Port of this process; 0: a free one, which the process logs.", ge=0, le=65535)


class TracingSettings(Section):
    """OpenTelemetry traces of Stepstream's own processes, from an agent's call to its label in the tables."""

    endpoint: OptionalHttpAddress = setting(
        "",
        "Base address of a collector that takes OTLP over HTTP, as `http://collector:4318`; empty: no traces. It needs "
        "the extra `tracing`. OpenTelemetry's variable `OTEL_EXPORTER_OTLP_HEADERS` has headers for the collector.",
    )
    share: float = setting(1.0, "Share of the calls without a trace of the agent's own that are traced.", ge=0, le=1)


def _check_master_keys(keys: SecretStr) -> SecretStr:
    if keys.get_secret_value():
        parse_master_keys(keys.get_secret_value())
    return keys


MasterKeys = Annotated[SecretStr, AfterValidator(_check_master_keys)]
"""Master keys in the format of `master_keys`."""


class SealSettings(Section):
    """Encryption of personal fields in the log, under keys that an erasure destroys."""

    master_key: MasterKeys = setting(
        SecretStr(""),
        "Master keys that wrap the keys of persons, joined by commas; the first wraps new keys. Empty: a random one, "
        "created once in `DATA/secrets`. All machines need the same. Without them, sealed records stay unreadable for "
        "ever. `stepstream master-key create` makes one; `legacy:SECRET` is a secret from a release without ids.",
    )


class LargeRecordsSettings(Section):
    """Records that are too large for Kafka: their content lies in a store of objects."""

    store: str = setting(
        "",
        "Folder or fsspec address (as `s3://bucket/prefix`) of the objects, the same for all programs; default: "
        "`large-records` below `learner.checkpoints` if that is an address, else `DATA/large-records`.",
    )
    inline_bytes: int = setting(
        800_000,
        "Largest step or feedback that is sent whole; labelled trajectories may have 15 MiB more. Of a larger one, the "
        "content goes to the store.",
        unit="bytes",
        ge=10_000,
        le=1_000_000,
    )
    max_mb: int = setting(
        64, "Largest content in the store; a record with more becomes a dead letter.", unit="MB", ge=1
    )


class HttpSettings(Section):
    """Limits of every HTTP server: gateway, registry, store, console and inference workers; whose pages may call."""

    allowed_hosts: list[str] = setting(
        [],
        "Further names under which callers reach a server, as `api.example.com`, or `.example.com` for all below it. "
        "Addresses, names without a dot and private names (`.internal`, `.local`, `.svc`) need none. Any other Host "
        "gets status 403.",
    )
    allowed_origins: list[str] = setting(
        [], "Origins of other sites whose pages may call, as `https://app.example.com`. Any other gets status 403."
    )

    connections: int = setting(
        4096,
        "Connections of a process. Above it, one without a request is closed for a new one; if there is none, the new "
        "one gets status 503. The system's limit of open files, less 256, bounds it too.",
        unit="connections",
        ge=1,
    )
    header_kb: int = setting(64, "Largest head of a request; a larger one gets status 431.", unit="KB", ge=1)
    header_s: float = setting(
        20.0, "Time for a request's head, from its first byte. Afterwards it gets status 408.", unit="s", gt=0
    )
    body_mb: int = setting(64, "Largest body of a request; a larger one gets status 413.", unit="MB", ge=1)
    bodies_mb: int = setting(
        1024,
        "Memory limit of the bodies of all requests of a process, from their arrival to their response. A request "
        "above it gets status 503.",
        unit="MB",
        ge=1,
    )
    body_s: float = setting(
        120.0, "Time for a request's body, from the end of its head. Afterwards it gets status 408.", unit="s", gt=0
    )
    write_s: float = setting(
        60.0, "Time for a caller to take 64 KiB of a response that waits for it. A slower one is cut.", unit="s", gt=0
    )
    idle_s: float = setting(120.0, "Time without a request after which a connection is closed.", unit="s", gt=0)
