"""The one place where the addresses of the embedded parts come from.

What listens says its host and port once (`broker.port`, `registry.port`, …); `wire` makes every address that a
client uses follow from that. An address that the user set to something else names a part that runs elsewhere:
the stack does not start it, and waits for it.
"""

from pathlib import Path

from stepstream.config import (
    ClickHouseSettings,
    FleetSettings,
    GatewaySettings,
    KafkaSettings,
    SchemaRegistrySettings,
    Section,
    Settings,
)
from stepstream.embedded.ports import free_block

# What to set to use a part that runs elsewhere.
VARIABLES = {
    "broker": "STEPSTREAM_KAFKA_BOOTSTRAP",
    "registry": "STEPSTREAM_SCHEMA_REGISTRY_URL",
    "store": "STEPSTREAM_CLICKHOUSE_URL",
}
# Ports that `isolated` hands out: the named parts, then room for the workers and for the metrics.
_NAMED = ("broker", "controller", "registry", "store", "gateway", "console")
_WORKERS = 8
_METRICS = 24


def wire(settings: Settings) -> Settings:
    """The same settings with every address of an embedded part consistent, and the data folder absolute.

    Idempotent. Parts that run elsewhere keep their address and are named in `stack.external`.
    """
    broker, registry, store = settings.broker, settings.registry, settings.store
    embedded = {
        "broker": f"{reachable(broker.host)}:{broker.port}",
        "registry": f"http://{reachable(registry.host)}:{registry.port}",
        "store": f"http://{reachable(store.host)}:{store.port}",
    }
    given = {
        "broker": (settings.kafka.bootstrap, _default(KafkaSettings, "bootstrap")),
        "registry": (settings.schema_registry.url, _default(SchemaRegistrySettings, "url")),
        "store": (settings.clickhouse.url, _default(ClickHouseSettings, "url")),
    }
    external = [
        name
        for name, (value, default) in given.items()
        if name in settings.stack.external or value not in (default, embedded[name])
    ]
    address = {name: given[name][0] if name in external else embedded[name] for name in given}
    workers = worker_addresses(settings)
    gateway = settings.gateway
    gateway_url = f"http://{reachable(gateway.host)}:{gateway.port}"
    return settings.model_copy(
        update={
            "paths": settings.paths.model_copy(update={"data": settings.paths.data.absolute()}),
            "kafka": settings.kafka.model_copy(update={"bootstrap": address["broker"]}),
            "schema_registry": settings.schema_registry.model_copy(update={"url": address["registry"]}),
            "clickhouse": settings.clickhouse.model_copy(update={"url": address["store"]}),
            "gateway": gateway.model_copy(
                update={"upstreams": workers}
                if workers and gateway.upstreams == _default(GatewaySettings, "upstreams")
                else {}
            ),
            "fleet": settings.fleet.model_copy(
                update={"gateway_url": gateway_url}
                if settings.fleet.gateway_url == _default(FleetSettings, "gateway_url")
                else {}
            ),
            "stack": settings.stack.model_copy(update={"external": external}),
        }
    )


def worker_addresses(settings: Settings) -> list[str]:
    """Base addresses of the stack's inference workers: ports count up from `inference.port`."""
    host, port = reachable(settings.inference.host), settings.inference.port
    return [f"http://{host}:{port + i}" for i in range(settings.stack.workers)]


def reachable(host: str) -> str:
    """The address by which this machine reaches what listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)


def isolated(settings: Settings, data: Path) -> Settings:
    """Settings for a stack beside others: every port free and of its own, its own data folder, all embedded."""
    base = free_block(len(_NAMED) + _WORKERS + _METRICS)
    port = {name: base + i for i, name in enumerate(_NAMED)}
    workers = base + len(_NAMED)
    defaults = Settings()
    ported = settings.model_copy(
        update={
            "paths": settings.paths.model_copy(update={"data": data}),
            "kafka": settings.kafka.model_copy(update={"bootstrap": defaults.kafka.bootstrap}),
            "schema_registry": settings.schema_registry.model_copy(update={"url": defaults.schema_registry.url}),
            "clickhouse": settings.clickhouse.model_copy(update={"url": defaults.clickhouse.url}),
            "broker": settings.broker.model_copy(
                update={"port": port["broker"], "controller_port": port["controller"]}
            ),
            "registry": settings.registry.model_copy(update={"port": port["registry"]}),
            "store": settings.store.model_copy(update={"port": port["store"]}),
            "gateway": settings.gateway.model_copy(
                update={"port": port["gateway"], "upstreams": defaults.gateway.upstreams}
            ),
            "fleet": settings.fleet.model_copy(update={"gateway_url": defaults.fleet.gateway_url}),
            "console": settings.console.model_copy(update={"port": port["console"]}),
            "inference": settings.inference.model_copy(update={"port": workers}),
            "stack": settings.stack.model_copy(update={"external": [], "metrics_port_base": workers + _WORKERS}),
        }
    )
    return wire(ported)


def _default(section: type[Section], field: str) -> object:
    return section.model_fields[field].get_default()
