"""One place for addresses: what clients use follows from what listens."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.config import Settings, environment_of, load
from stepstream.embedded.addresses import isolated, reachable, wire
from stepstream.embedded.processes import Process, table


def settings(**variables: str) -> Settings:
    return load(environment={f"STEPSTREAM_{name}": value for name, value in variables.items()})


def test_defaults_are_the_embedded_addresses() -> None:
    wired = wire(Settings())
    assert wired.stack.external == []
    assert wired.kafka == Settings().kafka
    assert wired.clickhouse == Settings().clickhouse


def test_clients_follow_the_ports_of_what_listens() -> None:
    wired = wire(
        settings(
            BROKER_PORT="19092",
            REGISTRY_PORT="18081",
            STORE_PORT="18123",
            GATEWAY_PORT="18080",
            INFERENCE_PORT="18000",
            STACK_WORKERS="2",
        )
    )
    assert wired.kafka.bootstrap == "127.0.0.1:19092"
    assert wired.schema_registry.url == "http://127.0.0.1:18081"
    assert wired.clickhouse.url == "http://127.0.0.1:18123"
    assert wired.fleet.gateway_url == "http://127.0.0.1:18080"
    assert wired.gateway.upstreams == ["http://127.0.0.1:18000", "http://127.0.0.1:18001"]
    assert wired.stack.external == []


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("KAFKA_BOOTSTRAP", "kafka-1:9092,kafka-2:9092", "broker"),
        ("SCHEMA_REGISTRY_URL", "https://registry.example", "registry"),
        ("CLICKHOUSE_URL", "https://clickhouse.example:8443", "store"),
    ],
)
def test_a_part_with_an_address_of_its_own_runs_elsewhere(name: str, value: str, part: str) -> None:
    wired = wire(settings(**{name: value}))
    assert wired.stack.external == [part]
    assert environment_of(wired)[f"STEPSTREAM_{name}"] == value
    external = [process.name for process in table(wired) if isinstance(process, Process) and process.external]
    assert external == [part]


def test_a_part_at_the_embedded_address_can_be_said_to_run_elsewhere() -> None:
    assert wire(settings(STACK_EXTERNAL="broker")).stack.external == ["broker"]


def test_addresses_of_the_user_are_left_alone() -> None:
    wired = wire(settings(GATEWAY_UPSTREAMS="http://gpu-1:8000", FLEET_GATEWAY_URL="http://gate"))
    assert wired.gateway.upstreams == ["http://gpu-1:8000"]
    assert wired.fleet.gateway_url == "http://gate"


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("10.0.0.7", "10.0.0.7")],
)
def test_wildcards_are_reached_over_the_loopback(host: str, address: str) -> None:
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
def test_wiring_is_idempotent_and_survives_the_way_to_a_child(variables: dict[str, str]) -> None:
    wired = wire(settings(**variables))
    assert wire(wired) == wired
    assert load(environment=environment_of(wired)) == wired


def test_isolated_stacks_share_no_port_and_no_folder(tmp_path: Path) -> None:
    base = settings(KAFKA_BOOTSTRAP="elsewhere:9092", LABEL_IDLE_TIMEOUT_S="3", STACK_WORKERS="2")
    one, two = isolated(base, tmp_path / "one"), isolated(base, tmp_path / "two")
    assert one.stack.external == []
    assert one.label.idle_timeout_s == 3

    def ports(of: Settings) -> list[int]:
        return [port.port for process in table(of) if isinstance(process, Process) for port in process.ports]

    assert len(ports(one)) == len(set(ports(one)))
    assert not set(ports(one)) & set(ports(two))
    assert not set(ports(one)) & set(ports(wire(Settings())))
