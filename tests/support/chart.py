"""Render the Helm chart of a profile, and find schemas of its objects."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "infra" / "deploy" / "chart"
PROFILES = sorted(file.stem for file in (CHART / "profiles").glob("*.yaml"))
CUSTOM = ROOT / "tests" / "data" / "kubernetes"
KUBERNETES = "1.33"
NAME = "stepstream"

Manifest = dict[str, Any]


@cache
def profile(name: str) -> Manifest:
    """Return the chart's values under a profile."""
    return merged(values(CHART / "values.yaml"), values(CHART / "profiles" / f"{name}.yaml"))


def render(chosen: Manifest) -> list[Manifest]:
    """Return the objects of the chart under these values, which replace the defaults."""
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(chosen, name=NAME, namespace="default")
    return [entry for text in files.values() for entry in yaml.safe_load_all(text) if entry]


def values(file: Path) -> Manifest:
    """Read a values file."""
    read = yaml.safe_load(file.read_text())
    assert isinstance(read, dict)
    return read


def merged(base: Manifest, over: Manifest) -> Manifest:
    """Return `base` with the values of `over`, as Helm merges files."""
    both = base | over
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            both[key] = merged(base[key], value)
    return both


def validate(manifest: Manifest) -> None:
    """Check an object against its schema, without unknown fields.

    Raises:
        jsonschema.ValidationError: a custom resource does not match.
        kubernetes_validate.ValidationError: another object does not match.
    """
    custom = custom_schemas().get((manifest["apiVersion"], manifest["kind"]))
    if custom is None:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    else:
        jsonschema.validate(manifest, custom)


@cache
def custom_schemas() -> dict[tuple[str, str], Any]:
    """Return the schemas of custom resources by API version and kind."""
    kinds = {"kafkatopic": "KafkaTopic", "kafkauser": "KafkaUser", "scaledobject": "ScaledObject"}
    read = {kind: json.loads((CUSTOM / f"{file}.json").read_text()) for file, kind in kinds.items()}
    return {(entry["apiVersion"], kind): without_unknown(entry["schema"]) for kind, entry in read.items()}


def without_unknown(schema: Any, *, is_top: bool = True) -> Any:
    """Return a schema that refuses fields that it does not declare. An object's `metadata` is Kubernetes' own."""
    if isinstance(schema, list):
        return [without_unknown(item, is_top=False) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: without_unknown(value, is_top=False) for key, value in schema.items()}
    is_open = is_top or "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and not is_open:
        closed["additionalProperties"] = False
    if is_top:
        closed["additionalProperties"] = False
    return closed
