"""`resolve_addresses` derives the clients' addresses from the ports that the parts listen on."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.config import Settings, environment_of, load
from stepstream.embedded.addresses import console_address, isolated, reachable, resolve_addresses
from stepstream.embedded.processes import Process, stack_parts


def settings(**variables: str) -> Settings:
    return load(environment={f"STEPSTREAM_{name}": value for name, value in variables.items()})


def test_defaults_are_the_embedded_addresses() -> None:
    resolved = resolve_addresses(Settings())
    assert resolved.stack.external == []
    assert resolved.kafka == Settings().kafka
    assert resolved.clickhouse == Settings().clickhouse


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:3000"),
        ("0.0.0.0", "http://127.0.0.1:3000"),
        ("::", "http://[::1]:3000"),
        ("fe80::2", "http://[fe80::2]:3000"),
        ("console.example", "http://console.example:3000"),
    ],
)
def test_the_console_s_address_is_one_that_a_browser_takes(host: str, address: str) -> None:
    assert console_address(settings(CONSOLE_HOST=host, CONSOLE_PORT="3000")) == address


def test_client_addresses_follow_the_ports_of_the_parts() -> None:
    resolved = resolve_addresses(
        settings(
            BROKER_PORT="19092",
            REGISTRY_PORT="18081",
            STORE_PORT="18123",
            GATEWAY_PORT="18080",
            INFERENCE_PORT="18000",
            STACK_WORKERS="2",
        )
    )
    assert resolved.kafka.bootstrap == "127.0.0.1:19092"
    assert resolved.schema_registry.url == "http://127.0.0.1:18081"
    assert resolved.clickhouse.url == "http://127.0.0.1:18123"
    assert resolved.fleet.gateway_url == "http://127.0.0.1:18080"
    assert resolved.gateway.upstreams == ["http://127.0.0.1:18000", "http://127.0.0.1:18001"]
    assert resolved.stack.external == []


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("KAFKA_BOOTSTRAP", "kafka-1:9092,kafka-2:9092", "broker"),
        ("SCHEMA_REGISTRY_URL", "https://registry.example", "registry"),
        ("CLICKHOUSE_URL", "https://clickhouse.example:8443", "store"),
    ],
)
def test_a_part_with_a_changed_address_is_external(name: str, value: str, part: str) -> None:
    resolved = resolve_addresses(settings(**{name: value}))
    assert resolved.stack.external == [part]
    assert environment_of(resolved)[f"STEPSTREAM_{name}"] == value
    external = [process.name for process in stack_parts(resolved) if isinstance(process, Process) and process.external]
    assert external == [part]


def test_a_part_at_the_embedded_address_can_be_declared_external() -> None:
    assert resolve_addresses(settings(STACK_EXTERNAL="broker")).stack.external == ["broker"]


def test_addresses_that_the_user_set_stay() -> None:
    resolved = resolve_addresses(settings(GATEWAY_UPSTREAMS="http://gpu-1:8000", FLEET_GATEWAY_URL="http://gate"))
    assert resolved.gateway.upstreams == ["http://gpu-1:8000"]
    assert resolved.fleet.gateway_url == "http://gate"


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("10.0.0.7", "10.0.0.7")],
)
def test_wildcard_hosts_are_reached_over_the_loopback(host: str, address: str) -> None:
    assert reachable(host) == address


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "BROKER_PORT": st.integers(1024, 65535).map(str),
            "STORE_HOST": st.sampled_from(["0.0.0.0", "127.0.0.1", "::"]),
            "KAFKA_BOOTSTRAP": st.sampled_from(["127.0.0.1:9092", "elsewhere:9092"]),
            "STACK_EXTERNAL": st.sampled_from(["", "store", "broker,registry"]),
            "STACK_WORKERS": st.integers(0, 4).map(str),
        },
    )
)
def test_resolved_addresses_are_stable_and_pass_to_a_child_by_its_environment(variables: dict[str, str]) -> None:
    resolved = resolve_addresses(settings(**variables))
    assert resolve_addresses(resolved) == resolved
    assert load(environment=environment_of(resolved)) == resolved


def test_isolated_stacks_share_no_port_and_no_folder(tmp_path: Path) -> None:
    base = settings(KAFKA_BOOTSTRAP="elsewhere:9092", LABEL_IDLE_TIMEOUT_S="3", STACK_WORKERS="2")
    one, two = isolated(base, tmp_path / "one"), isolated(base, tmp_path / "two")
    assert one.stack.external == []
    assert one.label.idle_timeout_s == 3

    def ports(settings: Settings) -> list[int]:
        processes = (part for part in stack_parts(settings) if isinstance(part, Process))
        return [port.port for process in processes for port in process.ports]

    assert len(ports(one)) == len(set(ports(one)))
    assert not set(ports(one)) & set(ports(two))
    assert not set(ports(one)) & set(ports(resolve_addresses(Settings())))
