"""The table of processes: order, selection, and that each can be told from the others."""

import importlib.util

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.config import Settings, load
from stepstream.embedded.addresses import wire
from stepstream.embedded.errors import StackError
from stepstream.embedded.processes import Action, Process, levels, select, table

SETTINGS = wire(load(environment={"STEPSTREAM_STACK_WORKERS": "2"}))
PARTS = table(SETTINGS)
PROCESSES = [part for part in PARTS if isinstance(part, Process)]
NAMES = [process.name for process in PROCESSES]


def test_table_is_in_an_order_in_which_it_could_start() -> None:
    seen: set[str] = set()
    for part in PARTS:
        assert seen.issuperset(part.after), part.name
        seen.add(part.name)


@given(st.sets(st.sampled_from(NAMES)))
def test_every_selection_starts_in_order_and_misses_nobody(names: set[str]) -> None:
    parts = select(PARTS, names)
    order = levels(parts)
    assert sorted(name for level in order for name in level) == sorted(part.name for part in parts)
    rank = {name: i for i, level in enumerate(order) for name in level}
    for part in parts:
        assert all(rank[name] < rank[part.name] for name in part.after if name in rank)
    assert {part.name for part in parts if isinstance(part, Process)} == names


def test_actions_come_with_the_parts_that_they_need() -> None:
    assert [part.name for part in select(PARTS, ["broker"])] == ["broker"]
    assert [part.name for part in select(PARTS, ["broker", "registry"])] == ["broker", "registry", "topics"]
    assert "tables" in [part.name for part in select(PARTS, ["store"])]


def test_consumers_stop_before_what_they_need() -> None:
    order = levels(PARTS)
    rank = {name: i for i, level in enumerate(order) for name in level}
    assert rank["broker"] < rank["registry"] < rank["govern"]
    assert rank["store"] < rank["store-writer"]
    assert rank["worker-1"] < rank["gateway"] < rank["fleet"]


def test_worker_means_all_of_them() -> None:
    assert [part.name for part in select(PARTS, ["worker"])] == ["worker-0", "worker-1"]


def test_unknown_process_is_named() -> None:
    with pytest.raises(StackError, match="no such process: broken; there are broker, registry"):
        select(PARTS, ["broken"])


def test_circle_is_refused() -> None:
    with pytest.raises(StackError, match="wait for each other"):
        levels([Action("a", ("b",), lambda settings: None), Action("b", ("a",), lambda settings: None)])


def test_names_ports_and_addresses_are_each_used_once() -> None:
    assert len(NAMES) == len(set(NAMES))
    ports = [port.port for process in PROCESSES for port in process.ports]
    assert len(ports) == len(set(ports))
    addresses = [process.ready.address for process in PROCESSES]
    assert len(addresses) == len(set(addresses))


def test_workers_are_told_who_they_are() -> None:
    second = next(process for process in PROCESSES if process.name == "worker-1")
    assert second.environment == {
        "STEPSTREAM_INFERENCE_PORT": "8001",
        "STEPSTREAM_INFERENCE_WORKER_ID": "worker-1",
    }


@pytest.mark.parametrize("module", [process.module for process in PROCESSES])
def test_module_of_each_process_can_be_run(module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    if spec.submodule_search_locations is not None:
        assert importlib.util.find_spec(f"{module}.__main__") is not None


def test_nothing_is_started_for_a_part_that_runs_elsewhere() -> None:
    wired = wire(Settings().model_copy(update={"stack": Settings().stack.model_copy(update={"external": ["store"]})}))
    store = next(part for part in table(wired) if part.name == "store")
    assert isinstance(store, Process)
    assert store.external
