"""Read the tree of sub-agents and hand-offs that a trajectory belongs to."""

from stepstream.services.console.endpoints import TENANT
from stepstream.services.console.trajectories.timeline import Query, Row, Trajectory

MAX_DEPTH = 8
MAX_NODES = 500

_IT = f"{TENANT} AND tenant = {{of:String}}"
_NODE = """
SELECT trajectory_id, parent_trajectory_id, min(parent_step_index) AS parent_step_index, count() AS steps,
    toUnixTimestamp64Milli(min(occurred_at)) AS opened_ms
FROM step_contents FINAL
WHERE {it} AND {condition} AND occurred_at >= fromUnixTimestamp64Milli({first:Int64})
    AND occurred_at <= fromUnixTimestamp64Milli({last:Int64})
GROUP BY trajectory_id, parent_trajectory_id ORDER BY opened_ms, trajectory_id LIMIT {rows:UInt32}
"""
_BY_ID = _NODE.replace("{it}", _IT).replace("{condition}", "trajectory_id = {id:String}")
_BY_PARENT = _NODE.replace("{it}", _IT).replace("{condition}", "parent_trajectory_id IN {ids:Array(String)}")
_OUTCOMES = f"""
SELECT trajectory_id, agent, success, reward, end, pending FROM trajectories FINAL
WHERE {_IT} AND trajectory_id IN {{ids:Array(String)}}
    AND opened_at >= fromUnixTimestamp64Milli({{first:Int64}}) AND opened_at <= fromUnixTimestamp64Milli({{last:Int64}})
"""
_DAY_MS = 86_400_000


def tree_of(query: Query, trajectory: Trajectory) -> tuple[list[Row], bool]:
    """Return the trajectories of a tree with their `depth`, parents first; True if it is larger than what is returned.

    Bounds: steps within a day of the trajectory's, `MAX_DEPTH` levels above it and as many below the topmost,
    `MAX_NODES` nodes.

    Args:
        query: queries the store.
        trajectory: any trajectory of the tree.
    """
    near = {"of": trajectory.tenant, "first": trajectory.first_ms - _DAY_MS, "last": trajectory.last_ms + _DAY_MS}
    root, cut = _root(query, near, trajectory.trajectory_id)
    if root is None:
        return [], False
    nodes = {root["trajectory_id"]: {**root, "depth": 0}}
    level = [root["trajectory_id"]]
    for depth in range(1, MAX_DEPTH + 2):  # of the last level, only whether there is one
        rows = query(_BY_PARENT, **near, ids=level, rows=MAX_NODES + 1)
        fresh = {row["trajectory_id"]: {**row, "depth": depth} for row in rows if row["trajectory_id"] not in nodes}
        level = list(fresh)[: MAX_NODES - len(nodes)] if depth <= MAX_DEPTH else []
        cut = cut or len(level) < len(fresh)
        nodes |= {name: fresh[name] for name in level}
        if not level:
            break
    outcomes = {row["trajectory_id"]: row for row in query(_OUTCOMES, **near, ids=list(nodes))}
    return _in_order([{**node, **outcomes.get(name, {})} for name, node in nodes.items()]), cut


def _root(query: Query, near: Row, trajectory_id: str) -> tuple[Row | None, bool]:
    """Return the topmost known ancestor, at most `MAX_DEPTH` levels above; True if there are more above it."""
    found: Row | None = None
    seen: set[str] = set()
    name = trajectory_id
    while name and name not in seen:
        rows = query(_BY_ID, **near, id=name, rows=1)
        if not rows:
            break
        if len(seen) > MAX_DEPTH:
            return found, True
        seen.add(name)
        found = rows[0]
        name = found["parent_trajectory_id"]
    return found, False


def _in_order(nodes: list[Row]) -> list[Row]:
    """Return the nodes, each before its children, siblings by the parent's step and the time."""
    children: dict[str, list[Row]] = {}
    for node in nodes[1:]:
        children.setdefault(node["parent_trajectory_id"], []).append(node)
    ordered: list[Row] = []
    waiting = [nodes[0]]
    while waiting:
        node = waiting.pop()
        ordered.append(node)
        own = sorted(
            children.pop(node["trajectory_id"], []),
            key=lambda child: (child["parent_step_index"], child["opened_ms"]),
        )
        waiting.extend(reversed(own))
    return ordered
