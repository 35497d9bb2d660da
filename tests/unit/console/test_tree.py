"""Test the tree of sub-agents: its order, and that it says when only a part of it is shown."""

from typing import Any

import pytest

from stepstream.services.console.trajectories.timeline import Row, Trajectory
from stepstream.services.console.trajectories.tree import MAX_DEPTH, MAX_NODES, tree_of


class Steps:
    """Answers as the store with these trajectories: the parent of each, and the parent's step."""

    def __init__(self, parents: dict[str, tuple[str, int]]) -> None:
        self._parents = parents

    def __call__(self, sql: str, *, rows: int | None = None, **wanted: Any) -> list[Row]:
        if rows is None:  # the outcomes: one of each trajectory
            return [{"trajectory_id": name, "success": True} for name in wanted["ids"]]
        names = [
            name
            for name, (parent, _) in self._parents.items()
            if name == wanted.get("id") or parent in wanted.get("ids", ())
        ]
        return [self._row(name) for name in names[:rows]]

    def _row(self, name: str) -> Row:
        parent, index = self._parents[name]
        return {
            "trajectory_id": name,
            "parent_trajectory_id": parent,
            "parent_step_index": index,
            "steps": 1,
            "opened_ms": 0,
        }


def chain(length: int) -> dict[str, tuple[str, int]]:
    """Return trajectories `0` to `length - 1`, each the sub-agent of the one before."""
    return {str(n): (str(n - 1) if n else "", 0) for n in range(length)}


def shown(parents: dict[str, tuple[str, int]], name: str) -> tuple[list[str], bool]:
    nodes, is_cut = tree_of(Steps(parents), Trajectory("default", name, 0, 0))
    return [node["trajectory_id"] for node in nodes], is_cut


def test_a_parent_comes_before_its_children_in_the_order_of_its_steps() -> None:
    parents = {"root": ("", -1), "late": ("root", 2), "early": ("root", 1), "grandchild": ("early", 0)}
    assert shown(parents, "late") == (["root", "early", "grandchild", "late"], False)
    nodes, _ = tree_of(Steps(parents), Trajectory("default", "root", 0, 0))
    assert [(node["depth"], node["success"]) for node in nodes] == [(0, True), (1, True), (2, True), (1, True)]


@pytest.mark.parametrize(
    ("length", "name", "first", "count", "is_cut"),
    [
        (MAX_DEPTH + 1, "0", "0", MAX_DEPTH + 1, False),
        (MAX_DEPTH + 2, "0", "0", MAX_DEPTH + 1, True),  # more below
        (MAX_DEPTH + 1, str(MAX_DEPTH), "0", MAX_DEPTH + 1, False),
        (MAX_DEPTH + 2, str(MAX_DEPTH + 1), "1", MAX_DEPTH + 1, True),  # more above
    ],
)
def test_a_tree_deeper_than_its_bound_is_cut(length: int, name: str, first: str, count: int, is_cut: bool) -> None:
    names, cut = shown(chain(length), name)
    assert (names[0], len(names), cut) == (first, count, is_cut)
    assert name in names


def test_a_tree_of_too_many_trajectories_is_cut() -> None:
    children = {f"child {n}": ("root", n) for n in range(MAX_NODES)}
    assert shown({"root": ("", -1)} | dict(list(children.items())[:-1]), "root")[1] is False
    names, is_cut = shown({"root": ("", -1)} | children, "root")
    assert (len(names), is_cut) == (MAX_NODES, True)


def test_a_circle_of_parents_ends() -> None:
    assert shown({"a": ("b", 0), "b": ("a", 0)}, "a")[0] == ["b", "a"]
