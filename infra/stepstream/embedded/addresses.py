"""Derive every client address of the embedded stack from the ports that its parts listen on.

Each part declares its host and port once (`broker.port`, `registry.port`, …), and `resolve_addresses` sets the
addresses that its clients use. An address that the user changed names an external part: the stack does not start it
but waits for it.
"""

from pathlib import Path

from stepstream.config import (
    ClickHouseSettings,
    FleetSettings,
    GatewaySettings,
    KafkaSettings,
    OptimiseSettings,
    SchemaRegistrySettings,
    Section,
    Settings,
)
from stepstream.embedded.ports import free_block

# Environment variable that points clients to an external part.
VARIABLES = {
    "broker": "STEPSTREAM_KAFKA_BOOTSTRAP",
    "registry": "STEPSTREAM_SCHEMA_REGISTRY_URL",
    "store": "STEPSTREAM_CLICKHOUSE_URL",
}
# Ports that `isolated` allocates: one for each of these parts, then `_WORKERS`, then `_METRICS`, the stack's own first.
_NAMED = ("broker", "controller", "registry", "store", "gateway", "console")
_WORKERS = 8
_METRICS = 25


def resolve_addresses(settings: Settings) -> Settings:
    """Return the settings with consistent addresses of all embedded parts and an absolute data folder.

    External parts keep their address and are listed in `stack.external`. Idempotent.
    """
    broker, registry, store = settings.broker, settings.registry, settings.store
    embedded = {
        "broker": f"{reachable(broker.host)}:{broker.port}",
        "registry": f"http://{reachable(registry.host)}:{registry.port}",
        "store": f"http://{reachable(store.host)}:{store.port}",
    }
    configured = {
        "broker": (settings.kafka.bootstrap, _default(KafkaSettings, "bootstrap")),
        "registry": (settings.schema_registry.url, _default(SchemaRegistrySettings, "url")),
        "store": (settings.clickhouse.url, _default(ClickHouseSettings, "url")),
    }
    external = [
        name
        for name, (value, default) in configured.items()
        if name in settings.stack.external or value not in (default, embedded[name])
    ]
    address = {name: value if name in external else embedded[name] for name, (value, _) in configured.items()}
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
            "optimise": settings.optimise.model_copy(
                update={"gateway_url": gateway_url}
                if settings.optimise.gateway_url == _default(OptimiseSettings, "gateway_url")
                else {}
            ),
            "stack": settings.stack.model_copy(update={"external": external}),
        }
    )


def worker_addresses(settings: Settings) -> list[str]:
    """Return the base addresses of the stack's inference workers; ports count up from `inference.port`."""
    host, port = reachable(settings.inference.host), settings.inference.port
    return [f"http://{host}:{port + i}" for i in range(settings.stack.workers)]


def console_address(settings: Settings) -> str:
    """Return the address at which this machine's browser finds the console."""
    return f"http://{reachable(settings.console.host)}:{settings.console.port}"


def reachable(host: str) -> str:
    """Return the address by which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)


def isolated(settings: Settings, data: Path) -> Settings:
    """Return settings for a stack that shares nothing with others: free ports, this data folder, no external part."""
    base = free_block(len(_NAMED) + _WORKERS + _METRICS)
    port = {name: base + i for i, name in enumerate(_NAMED)}
    workers = base + len(_NAMED)
    defaults = Settings()
    separate = settings.model_copy(
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
            "optimise": settings.optimise.model_copy(update={"gateway_url": defaults.optimise.gateway_url}),
            "console": settings.console.model_copy(update={"port": port["console"]}),
            "inference": settings.inference.model_copy(update={"port": workers}),
            "stack": settings.stack.model_copy(
                update={
                    "external": [],
                    "metrics_port": workers + _WORKERS,
                    "metrics_port_base": workers + _WORKERS + 1,
                }
            ),
        }
    )
    return resolve_addresses(separate)


def _default(section: type[Section], field: str) -> object:
    return section.model_fields[field].get_default()
