"""Every profile of the Helm chart renders to valid objects that run Stepstream's processes with valid settings."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import pytest
import yaml
from chart import CHART, NAME, PROFILES, Manifest, merged, profile, render, validate

from stepstream.config import Settings, load, unknown_variables, variable
from stepstream.config.bootstrap import parse_bootstrap
from stepstream.core.object_store import is_remote
from stepstream.crypto.content_store import content_address
from stepstream.embedded.addresses import resolve_addresses
from stepstream.embedded.processes import Process, stack_parts
from stepstream.jobs.clickhouse.rows import TOPICS as STORED
from stepstream.jobs.govern import Govern
from stepstream.jobs.label import Label
from stepstream.topics.acl_formats import strimzi_users
from stepstream.topics.catalogue import LABELED_TRAJECTORIES, TOPICS
from stepstream.topics.codegen import chart_topics, chart_users

PROCESSES = {part.name: part for part in stack_parts(resolve_addresses(Settings())) if isinstance(part, Process)}
EMBEDDED = {"broker", "store", "fleet"}
"""Processes of the embedded stack that a cluster has as Kafka, ClickHouse and its agents."""
INPUTS = {"govern": Govern.inputs, "label": Label.inputs, "measure": (LABELED_TRAJECTORIES,), "store-writer": STORED}


@pytest.fixture(params=PROFILES)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return render(profile(request.param))


def of_kind(manifests: list[Manifest], *kinds: str) -> dict[str, Manifest]:
    """Return the objects of these kinds by the name of their process."""
    return {m["metadata"]["name"].removeprefix(f"{NAME}-"): m for m in manifests if m["kind"] in kinds}


def containers(manifests: list[Manifest]) -> Iterator[tuple[Any, Any]]:
    """Yield every pod's specification with its container."""
    for manifest in of_kind(manifests, "Deployment", "StatefulSet", "Job").values():
        pod = manifest["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        yield pod, container


def settings_of(manifests: list[Manifest], folder: Path) -> Settings:
    """Load the file that the processes read."""
    file = folder / "settings.toml"
    file.write_text(of_kind(manifests, "ConfigMap")["settings"]["data"]["settings.toml"])
    return load({}, file)


def test_there_is_a_profile_for_each_size() -> None:
    assert PROFILES == ["large", "one-machine", "small-team"]


def test_every_object_matches_its_schema(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        validate(manifest)


def test_objects_have_names_of_their_own(manifests: list[Manifest]) -> None:
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]
    assert len(names) == len(set(names))


def test_a_wrong_object_does_not_match() -> None:
    objects = {manifest["kind"]: manifest for manifest in render(profile("large"))}
    for kind in ("StatefulSet", "NetworkPolicy", "PodDisruptionBudget", "Service", "Job", "ConfigMap"):
        with pytest.raises(kubernetes_validate.ValidationError):
            validate(merged(objects[kind], {"spek": {}}))
    for kind in ("KafkaTopic", "ScaledObject"):
        with pytest.raises(jsonschema.ValidationError):
            validate(merged(objects[kind], {"spec": {"unknown": 1}}))


def test_helm_finds_no_fault() -> None:
    findings = helm_python.lint(CHART)
    assert findings["errors"] == []
    assert [message["error"] for message in findings["messages"]] == ["icon is recommended"]


def test_the_table_has_every_process_with_its_module_and_port() -> None:
    table = profile("one-machine")["processes"]
    names = {name.replace("worker-0", "worker") for name in PROCESSES} - EMBEDDED
    assert set(table) == names
    for name, row in table.items():
        process = PROCESSES["worker-0" if name == "worker" else name]
        assert row["module"] == process.module
        if "port" in row:
            assert row["port"] == process.ports[0].port


def test_required_processes_run_and_optional_ones_do_not(manifests: list[Manifest]) -> None:
    running = set(of_kind(manifests, "Deployment", "StatefulSet")) - {"registry"}
    required = {name.replace("worker-0", "worker") for name, process in PROCESSES.items() if not process.optional}
    assert running == required - EMBEDDED - {"registry"}


def test_processes_that_keep_data_have_a_volume_and_a_permanent_name(manifests: list[Manifest]) -> None:
    assert set(of_kind(manifests, "StatefulSet")) == {
        "gateway",
        "govern",
        "label",
        "measure",
        "store-writer",
        "learner",
    }


def test_the_settings_are_valid(manifests: list[Manifest], tmp_path: Path) -> None:
    settings = settings_of(manifests, tmp_path)
    assert settings.gateway.host == settings.metrics.host == "0.0.0.0"
    assert all(
        workload["spec"].get("replicas", 1) <= settings.topics.partitions for workload in manifests_of_jobs(manifests)
    )


def test_all_pods_reach_the_stores_of_versions_and_large_records(manifests: list[Manifest], tmp_path: Path) -> None:
    settings = settings_of(manifests, tmp_path)
    stores = [settings.learner.checkpoints, content_address(settings)]
    if all(map(is_remote, stores)):
        assert "shared" not in of_kind(manifests, "PersistentVolumeClaim")
        return
    assert all(store.removeprefix("file://").startswith("/var/lib/stepstream-shared/") for store in stores)
    (claim,) = of_kind(manifests, "PersistentVolumeClaim").values()
    for workload in of_kind(manifests, "Deployment", "StatefulSet").values():
        pod = workload["spec"]["template"]["spec"]
        assert {"name": "shared", "mountPath": "/var/lib/stepstream-shared"} in pod["containers"][0]["volumeMounts"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["shared"]["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}


def manifests_of_jobs(manifests: list[Manifest]) -> list[Manifest]:
    return [m for name, m in of_kind(manifests, "StatefulSet", "Deployment").items() if name in INPUTS]


def test_every_variable_is_a_setting(manifests: list[Manifest]) -> None:
    for _, container in containers(manifests):
        names = {entry["name"] for entry in container["env"] if entry["name"].startswith("STEPSTREAM_")}
        assert unknown_variables(dict.fromkeys(names, "")) == []
    worker = of_kind(manifests, "Deployment")["worker"]["spec"]["template"]["spec"]["containers"][0]
    variables = {entry["name"]: entry.get("value") for entry in worker["env"]}
    assert variables[variable("inference", "worker_id")] == "$(POD_NAME)"
    assert variables[variable("inference", "url")] == "http://$(POD_IP):8000"


def test_no_process_runs_as_root_or_gets_variables_of_services(manifests: list[Manifest]) -> None:
    for pod, container in containers(manifests):
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["enableServiceLinks"]  # STEPSTREAM_GATEWAY_PORT would be an address
        assert not pod["automountServiceAccountToken"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"name": "data", "mountPath": "/var/lib/stepstream"} in container["volumeMounts"]


def test_only_gateway_and_judge_get_the_keys_of_providers() -> None:
    optional = {name: {"enabled": True} for name, row in profile("large")["processes"].items() if "enabled" in row}
    assert {"control", "curate", "judge", "verify", "inspect", "registry"} == set(optional)
    manifests = render(merged(profile("large"), {"processes": optional}))

    def holders(secret: str) -> set[str]:
        reference = {"secretRef": {"name": secret}}
        return {container["name"] for _, container in containers(manifests) if reference in container["envFrom"]}

    assert holders("stepstream-providers") == {"gateway", "judge"}
    assert holders("stepstream-optimise") == {"control"}


def test_every_process_has_probes_on_its_port(manifests: list[Manifest]) -> None:
    for workload in of_kind(manifests, "Deployment", "StatefulSet").values():
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        assert {probe for probe in container if probe.endswith("Probe")} == {
            "startupProbe",
            "livenessProbe",
            "readinessProbe",
        }
        # A worker without a version is alive, and not ready.
        assert container["livenessProbe"]["httpGet"]["path"] == "/metrics"
        assert container["readinessProbe"]["httpGet"]["path"] == "/ready"


def test_several_pods_have_a_disruption_budget(manifests: list[Manifest]) -> None:
    budgets = of_kind(manifests, "PodDisruptionBudget")
    if not budgets:
        assert {m["spec"].get("replicas") for m in of_kind(manifests, "Deployment", "StatefulSet").values()} == {1}
        return
    scaled = of_kind(manifests, "ScaledObject")
    workloads = of_kind(manifests, "Deployment", "StatefulSet")
    several = {name for name, m in workloads.items() if name in scaled or m["spec"]["replicas"] > 1}
    assert set(budgets) == several


def test_lag_scales_jobs_by_topics_that_they_read(manifests: list[Manifest], tmp_path: Path) -> None:
    settings = settings_of(manifests, tmp_path)
    for name, scaled in of_kind(manifests, "ScaledObject").items():
        assert "replicas" not in of_kind(manifests, "StatefulSet")[name]["spec"]  # an upgrade would undo the scaling
        assert scaled["spec"]["maxReplicaCount"] <= settings.topics.partitions
        for trigger in scaled["spec"]["triggers"]:
            assert trigger["metadata"]["topic"] in INPUTS[name]
            assert trigger["metadata"]["consumerGroup"] == f"stepstream-{'store' if name == 'store-writer' else name}"


@pytest.mark.parametrize("text", ["k1:9093", "SASL_SSL://k1, k2:9093 [fd00::1],", "::1", "[::1]:9093,ssl://[::1]/"])
def test_scaling_reaches_the_brokers_in_every_form(text: str) -> None:
    chosen = merged(profile("large"), {"settings": {"kafka": {"bootstrap": text}}})
    scaled = of_kind(render(chosen), "ScaledObject").values()
    addresses = {trigger["metadata"]["bootstrapServers"] for one in scaled for trigger in one["spec"]["triggers"]}
    assert addresses == {",".join(str(broker) for broker in parse_bootstrap(text))}


def test_workers_are_called_by_gateway_and_verify_only(manifests: list[Manifest]) -> None:
    policies = of_kind(manifests, "NetworkPolicy")
    if not policies:
        return
    assert set(policies) == set(of_kind(manifests, "Deployment", "StatefulSet"))
    sources = [rule.get("from") for rule in policies["worker"]["spec"]["ingress"]]
    pods = [source["podSelector"]["matchLabels"] for rule in sources for source in rule if "podSelector" in source]
    assert [labels["app.kubernetes.io/component"] for labels in pods] == ["gateway", "verify"]
    assert None not in sources
    assert [rule.get("from") for rule in policies["govern"]["spec"]["ingress"]] != [None]
    assert None in [rule.get("from") for rule in policies["gateway"]["spec"]["ingress"]]


def test_a_client_stays_at_one_gateway(manifests: list[Manifest]) -> None:
    affinity = {name: m["spec"].get("sessionAffinity", "None") for name, m in of_kind(manifests, "Service").items()}
    assert affinity == dict.fromkeys(affinity, "None") | {"gateway": "ClientIP"}


def test_strimzi_gets_the_topics_of_the_catalogue(tmp_path: Path) -> None:
    prefixed = merged(profile("large"), {"settings": {"kafka": {"prefix": "blue."}}})
    manifests = render(prefixed)
    settings = settings_of(manifests, tmp_path)
    topics = {m["spec"]["topicName"]: m["spec"] for m in manifests if m["kind"] == "KafkaTopic"}
    assert topics == {
        f"blue.{name}": {
            "topicName": f"blue.{name}",
            "partitions": topic.partition_count(settings.topics),
            "replicas": 3,
            "config": topic.settings(settings),
        }
        for name, topic in TOPICS.items()
    }
    scaled = of_kind(manifests, "ScaledObject")["govern"]["spec"]["triggers"][0]["metadata"]
    assert (scaled["topic"], scaled["consumerGroup"]) == ("blue.steps", "blue.stepstream-govern")


def test_each_process_connects_as_a_user_with_the_rights_of_its_program(tmp_path: Path) -> None:
    secured = {"settings": {"kafka": {"prefix": "blue."}}, "strimzi": {"cluster": "kafka", "users": True}}
    optional = {"processes": {name: {"enabled": True} for name in ("control", "curate", "inspect", "judge", "verify")}}
    manifests = render(merged(merged(profile("large"), secured), optional))
    settings = settings_of(manifests, tmp_path)
    made = {m["metadata"]["name"]: m for m in manifests if m["kind"] == "KafkaUser"}
    assert list(made.values()) == strimzi_users(settings, "kafka", "scram-sha-512")
    for manifest in made.values():
        validate(manifest)
    for _, container in containers(manifests):
        variables = {entry["name"]: entry for entry in container["env"]}
        user = variables[variable("kafka", "sasl_username")]["value"]
        program = {"worker": "inference", "store-writer": "store", "apply": "operator"}.get(container["name"])
        assert user == f"blue.stepstream-{program or container['name']}"
        assert user in made
        secret = variables[variable("kafka", "sasl_password")]["valueFrom"]["secretKeyRef"]
        assert secret == {"name": user, "key": "password"}
        assert variables[variable("kafka", "ssl_ca_location")]["value"] == "/etc/kafka-ca/ca.crt"
        assert "/etc/kafka-ca" in [mount["mountPath"] for mount in container["volumeMounts"]]
        names = {name for name in variables if name.startswith("STEPSTREAM_")}
        assert unknown_variables(dict.fromkeys(names, "")) == []


def test_prometheus_operator_and_grafana_get_rules_and_dashboards() -> None:
    chosen = merged(profile("large"), {"prometheusOperator": {"enabled": True}, "grafana": {"enabled": True}})
    manifests = render(chosen)
    rules = of_kind(manifests, "PrometheusRule")[NAME]
    assert rules["spec"] == yaml.safe_load((CHART / "rules.yml").read_text())
    assert rules["metadata"]["labels"] == {"release": "prometheus"}
    monitor = of_kind(manifests, "PodMonitor")[NAME]["spec"]
    chosen_labels = monitor["selector"]["matchLabels"].items()
    for workload in of_kind(manifests, "Deployment", "StatefulSet").values():
        template = workload["spec"]["template"]
        assert chosen_labels <= template["metadata"]["labels"].items()
        (container,) = template["spec"]["containers"]
        assert [port["name"] for port in container["ports"]] == [monitor["podMetricsEndpoints"][0]["port"]]
    boards = of_kind(manifests, "ConfigMap")["dashboards"]
    validate(boards)
    assert boards["metadata"]["labels"] == {"grafana_dashboard": "1"}
    files = (CHART / "dashboards").iterdir()
    assert {name: json.loads(text) for name, text in boards["data"].items()} == {
        file.name: json.loads(file.read_text()) for file in files
    }


def test_the_charts_files_are_generated() -> None:
    assert (CHART / "users.json").read_text() == chart_users(), "run `stepstream schemas generate`"
    assert (CHART / "topics.json").read_text() == chart_topics(), "run `stepstream schemas generate`"
    assert [topic["name"] for topic in json.loads(chart_topics())] == list(TOPICS)
