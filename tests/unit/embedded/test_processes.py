"""The stack's parts start in order, can be selected, share no name, port or address, and include every program."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.config import load
from stepstream.embedded.addresses import resolve_addresses
from stepstream.embedded.errors import StackError
from stepstream.embedded.processes import Action, Process, default_names, select_parts, stack_parts, start_order

SETTINGS = resolve_addresses(load(environment={"STEPSTREAM_STACK_WORKERS": "2"}))
PARTS = stack_parts(SETTINGS)
PROCESSES = [part for part in PARTS if isinstance(part, Process)]
NAMES = [process.name for process in PROCESSES]
ROOT = Path(__file__).parents[3]
ROOTS = ("core", "topics", "sdk", "stream-jobs", "learner", "services", "infra")


def test_stack_parts_lists_prerequisites_first() -> None:
    seen: set[str] = set()
    for part in PARTS:
        assert seen.issuperset(part.after), part.name
        seen.add(part.name)


@given(st.sets(st.sampled_from(NAMES)))
def test_every_selection_starts_all_its_parts_after_their_prerequisites(names: set[str]) -> None:
    parts = select_parts(PARTS, names)
    order = start_order(parts)
    assert sorted(name for level in order for name in level) == sorted(part.name for part in parts)
    rank = {name: i for i, level in enumerate(order) for name in level}
    for part in parts:
        assert all(rank[name] < rank[part.name] for name in part.after if name in rank)
    assert {part.name for part in parts if isinstance(part, Process)} == names


def test_an_action_is_selected_with_its_prerequisites() -> None:
    assert [part.name for part in select_parts(PARTS, ["broker"])] == ["broker"]
    assert [part.name for part in select_parts(PARTS, ["broker", "registry"])] == ["broker", "registry", "topics"]
    assert "tables" in [part.name for part in select_parts(PARTS, ["store"])]


def test_prerequisites_start_on_earlier_levels() -> None:
    order = start_order(PARTS)
    rank = {name: i for i, level in enumerate(order) for name in level}
    assert rank["broker"] < rank["registry"] < rank["govern"]
    assert rank["store"] < rank["store-writer"]
    assert rank["worker-1"] < rank["gateway"] < rank["fleet"]


def test_the_name_worker_selects_every_worker() -> None:
    assert [part.name for part in select_parts(PARTS, ["worker"])] == ["worker-0", "worker-1"]


def test_the_error_for_an_unknown_process_lists_the_names() -> None:
    with pytest.raises(StackError, match="no such process: broken; there are broker, registry"):
        select_parts(PARTS, ["broken"])


def test_a_cycle_of_prerequisites_raises() -> None:
    with pytest.raises(StackError, match="wait for each other"):
        start_order([Action("a", ("b",), lambda settings: None), Action("b", ("a",), lambda settings: None)])


def test_names_ports_and_addresses_are_each_used_once() -> None:
    assert len(NAMES) == len(set(NAMES))
    ports = [port.port for process in PROCESSES for port in process.ports]
    assert len(ports) == len(set(ports))
    addresses = [process.ready.address for process in PROCESSES]
    assert len(addresses) == len(set(addresses))


def test_a_worker_gets_its_port_and_id_from_its_environment() -> None:
    second = next(process for process in PROCESSES if process.name == "worker-1")
    assert second.environment == {
        "STEPSTREAM_INFERENCE_PORT": "8001",
        "STEPSTREAM_INFERENCE_WORKER_ID": "worker-1",
    }


@pytest.mark.parametrize("module", [process.module for process in PROCESSES])
def test_the_module_of_each_process_can_be_run(module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    if spec.submodule_search_locations is not None:
        assert importlib.util.find_spec(f"{module}.__main__") is not None


def test_an_external_part_is_marked_external() -> None:
    settings = resolve_addresses(load(environment={"STEPSTREAM_STACK_EXTERNAL": "store"}))
    store = next(part for part in stack_parts(settings) if part.name == "store")
    assert isinstance(store, Process)
    assert store.external


def test_a_job_may_have_several_workers_with_instances_and_ports_of_their_own() -> None:
    scaled = SETTINGS.model_copy(update={"stack": SETTINGS.stack.model_copy(update={"scale": ["label=3"]})})
    workers = [part for part in stack_parts(scaled) if isinstance(part, Process) and part.name.startswith("label")]
    assert [worker.name for worker in workers] == ["label", "label-2", "label-3"]
    assert [worker.environment.get("STEPSTREAM_JOBS_INSTANCE") for worker in workers] == [None, "2", "3"]
    assert len({worker.environment["STEPSTREAM_METRICS_PORT"] for worker in workers}) == 3
    assert len({worker.after for worker in workers}) == 1


@pytest.mark.parametrize("entry", ["label", "label=0", "label=x", "watch=2", "broker=2"])
def test_a_wrong_number_of_workers_is_refused_with_the_jobs_that_exist(entry: str) -> None:
    scaled = SETTINGS.model_copy(update={"stack": SETTINGS.stack.model_copy(update={"scale": [entry]})})
    with pytest.raises(StackError, match="govern, label, measure, store-writer"):
        stack_parts(scaled)


def test_every_program_of_the_package_is_in_the_table() -> None:
    programs = set(programs_of_the_package())
    assert {"stepstream.jobs.inspect", "stepstream.jobs.verify", "stepstream.services.gateway"} <= programs
    # An action runs the first, the controller the others for each search and each shadow replay.
    control = "stepstream.services.control.optimise"
    steps = {"stepstream.embedded.base_model", control, f"{control}.weights"}
    assert programs - steps == {process.module for process in PROCESSES} - {"stepstream.embedded.broker"}  # runs Java


def programs_of_the_package() -> Iterator[str]:
    """Yield the modules that run a process when they are executed: those that call `core.process.run` at their end."""
    for root in ROOTS:
        for file in (ROOT / root).rglob("*.py"):
            names = file.relative_to(ROOT / root).with_suffix("").parts
            if any(isinstance(node, ast.If) and runs_a_process(node) for node in ast.parse(file.read_text()).body):
                yield ".".join(names[:-1] if names[-1] == "__main__" else names)


def runs_a_process(guarded: ast.If) -> bool:
    calls = [node for node in ast.walk(guarded) if isinstance(node, ast.Call)]
    return "__main__" in ast.unparse(guarded.test) and any(ast.unparse(call.func) == "run" for call in calls)


def test_optional_processes_run_only_where_the_settings_name_them() -> None:
    optional = {"control", "curate", "fleet", "inspect", "judge", "verify"}
    assert set(NAMES) - set(default_names(SETTINGS, PARTS)) == optional
    settings = load(environment={"STEPSTREAM_STACK_MORE": ",".join(optional)})
    assert set(default_names(settings, stack_parts(settings))) >= optional


def test_the_stack_goes_on_without_agents_charts_and_optional_jobs() -> None:
    spare = {process.name for process in PROCESSES if not process.essential}
    assert spare == {"console", "control", "watch", "curate", "fleet", "inspect", "judge", "verify"}
    assert not any(set(part.after) & spare for part in PARTS)


def test_a_worker_without_a_base_model_is_ready_before_a_version_exists() -> None:
    assert {worker.ready.address for worker in PROCESSES if worker.name == "worker-0"} == {
        "http://127.0.0.1:8000/metrics"
    }
    settings = resolve_addresses(load(environment={"STEPSTREAM_CONFIG": "demo"}))
    (worker,) = (part for part in stack_parts(settings) if part.name == "worker-0")
    assert isinstance(worker, Process)
    assert worker.ready.address == "http://127.0.0.1:8000/health"
