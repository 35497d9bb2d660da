"""The compose file matches its schema and runs every process with valid settings; Prometheus reads all of them."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from stepstream.config import Settings, load, unknown_variables
from stepstream.crypto.content_store import content_address
from stepstream.embedded.addresses import resolve_addresses
from stepstream.embedded.processes import Process, stack_parts

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "infra" / "deploy"
FILE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = FILE["services"]
PROCESSES = {
    part.name.replace("worker-0", "worker"): part
    for part in stack_parts(resolve_addresses(Settings()))
    if isinstance(part, Process) and (not part.optional or part.name == "control")
}
OURS = sorted(set(SERVICES) & set(PROCESSES))
MASTER_KEY = "legacy:" + "x" * 32


def environment(service: str) -> dict[str, str]:
    """Return the variables of a service, with an example of each secret."""
    examples = {"SEAL_MASTER_KEY": MASTER_KEY}
    return {
        name: re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: examples.get(found[1], "example"), str(value))
        for name, value in SERVICES[service]["environment"].items()
    }


def test_the_file_matches_the_schema_of_compose_files() -> None:
    schema = json.loads((ROOT / "tests" / "data" / "compose" / "compose-spec.json").read_text())
    jsonschema.validate(FILE, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(FILE | {"services": {"kafka": {"imag": "x"}}}, schema)


def test_every_process_runs_beside_kafka_and_clickhouse() -> None:
    replaced = {"broker": "kafka", "store": "clickhouse"}
    assert {replaced.get(name, name) for name in PROCESSES} | {"apply", "prometheus"} == set(SERVICES)
    for name in OURS:
        assert SERVICES[name]["command"] == ["python", "-m", PROCESSES[name].module]


@pytest.mark.parametrize("service", OURS)
def test_the_settings_of_each_process_are_valid(service: str) -> None:
    variables = environment(service)
    assert unknown_variables(variables) == []
    settings = load(variables)
    assert settings.kafka.bootstrap == "kafka:9092"
    assert resolve_addresses(settings).stack.external == ["broker", "registry", "store"]


def test_no_secret_has_a_value_in_the_file() -> None:
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|KEY|SECRET", name) and "DEFAULT_ACCESS" not in name:
                assert re.fullmatch(r"\$\{\w+:\?.+\}", value), name


def test_each_process_gets_only_the_secrets_that_it_needs() -> None:
    def holders(variable: str) -> set[str]:
        return {name for name, service in SERVICES.items() if variable in service.get("environment", {})}

    assert holders("STEPSTREAM_GOVERN_PSEUDONYM_KEY") == {"govern"}
    assert holders("STEPSTREAM_CLICKHOUSE_PASSWORD") == {"apply", "store-writer", "console", "control"}
    chart = yaml.safe_load((DEPLOY / "chart" / "values.yaml").read_text())["processes"]
    sealing = {name for name, row in chart.items() if "stepstream-seal" in row["secrets"] and name in SERVICES}
    assert holders("STEPSTREAM_SEAL_MASTER_KEY") == sealing
    assert sealing == {"gateway", "govern", "label", "measure", "store-writer", "control", "learner", "console"}


def test_ports_are_open_to_this_machine_only_and_images_have_a_version() -> None:
    for name, service in SERVICES.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        if name not in (*OURS, "apply"):
            assert re.search(r":v?\d", service["image"]), service["image"]


def test_prometheus_reads_every_process() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    targets = [
        target for job in config["scrape_configs"] for group in job["static_configs"] for target in group["targets"]
    ]
    for target in targets:
        name, _, port = target.partition(":")
        own = load(environment(name))
        listens = {
            "gateway": (own.gateway.host, own.gateway.port),
            "console": (own.console.host, own.console.port),
            "worker": (own.inference.host, own.inference.port),
            "registry": (own.registry.host, own.registry.port),
        }
        assert listens.get(name, (own.metrics.host, own.metrics.port)) == ("0.0.0.0", int(port))
    assert sorted(target.partition(":")[0] for target in targets) == OURS


def test_what_a_process_keeps_is_on_a_volume() -> None:
    keep = {name for name in OURS if any(v.endswith(":/var/lib/stepstream") for v in SERVICES[name]["volumes"])}
    assert keep == {"govern", "label", "measure", "gateway", "learner", "worker"}
    assert SERVICES["learner"]["volumes"] == SERVICES["worker"]["volumes"]  # versions


def test_all_processes_reach_one_store_of_large_records() -> None:
    folder = "/var/lib/stepstream/large-records"
    for name in OURS:
        assert f"large-records:{folder}" in SERVICES[name]["volumes"]
        settings = load(environment(name) | {"STEPSTREAM_PATHS_DATA": "/var/lib/stepstream"})  # as the image sets it
        assert content_address(settings) == f"file://{folder}"
    assert folder in (DEPLOY / "Dockerfile").read_text(), "a new volume gets the owner of the folder in the image"
