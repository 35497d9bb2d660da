"""Carry changes of tools from one harness version to another. Pure."""

from collections.abc import Mapping
from typing import cast

from stepstream.services.control.history import AUTHOR
from stepstream.topics.events import Harness, HarnessTool, new_harness
from stepstream.versions import harnesses


def tool_of(content: Harness, name: str) -> HarnessTool | None:
    """Return what a version changes about a tool; None: nothing."""
    return next((one for one in content["tools"] if one["name"] == name), None)


def stable_changes(versions: Mapping[str, Harness], harness: Harness) -> dict[str, HarnessTool | None]:
    """Return by name the tools of the stable version that differ from those that a version has of its parents."""
    stable = harnesses.served_harnesses(versions.values()).stable
    if stable is None:
        return {}
    parents = [versions[one] for one in harness["parents"] if one in versions]
    found: dict[str, HarnessTool | None] = {}
    for name in sorted({one["name"] for each in (stable, *parents) for one in each["tools"]}):
        own = tool_of(harness, name)
        is_inherited = own in [tool_of(one, name) for one in parents] if parents else own is None
        if is_inherited and own != tool_of(stable, name):
            found[name] = tool_of(stable, name)
    return found


def replace_canary(
    versions: dict[str, Harness], canary: Harness, tools: Mapping[str, HarnessTool | None]
) -> tuple[list[Harness], str]:
    """Return the records that replace a running canary by one with other tools, in order, and its version.

    If that version was refused, the only record ends the canary.
    """
    replaced = canary["version"]
    versions[replaced] = harnesses.take_back(versions, replaced)
    made = [versions[replaced]]
    found = add_with_tools(versions, canary, tools)
    if versions[found]["state"] != "refused":
        made.append(harnesses.start_canary(versions, found, canary["share"]))
    return made, found


def origins(versions: Mapping[str, Harness], version: str) -> list[Harness]:
    """Return a version and those that it was made from by changes of tools, the newest first."""
    found = [versions[version]]
    for one in harnesses.lineage(versions, version)[1:]:
        if found[-1]["proposer"] != AUTHOR:
            break
        found.append(one)
    return found


def take_back_stable(versions: Mapping[str, Harness], last: str = "", *, target: str | None = None) -> list[Harness]:
    """Return the records that take back the stable version with those that changes of tools were made from, in order.

    The changes of tools stay in force: the version that serves then gets those of tools that it has unchanged.

    Args:
        versions: the agent's.
        last: the last version to take back; empty: given by `target`.
        target: version that shall serve again; empty: the agent's own calls; None: given by `last`.

    Raises:
        HarnessRefused: no version serves, or it is pinned.
    """
    after, made = dict(versions), [harnesses.take_back(versions, _stable_version(versions))]
    base = stable = made[0]
    after[stable["version"]] = stable
    for base in origins(versions, stable["version"]):
        if base["version"] == _stable_version(after):
            after[base["version"]] = harnesses.take_back(after, base["version"])
            made.append(after[base["version"]])
        if base["version"] == last or (_stable_version(after) or "") == target:
            break
    before = harnesses.served_harnesses(after.values()).stable or new_harness(
        event_id="", occurred_at_us=0, tenant=stable["tenant"], agent=stable["agent"], version=""
    )
    names = {one["name"] for each in (stable, base) for one in each["tools"]}
    changes = {
        name: tool_of(stable, name)
        for name in sorted(names)
        if tool_of(stable, name) != tool_of(base, name) == tool_of(before, name)
    }
    if changes:
        found = add_with_tools(after, before, changes)
        if after[found]["state"] != "refused":
            made.append(harnesses.promote(after, found))
    return made


def _stable_version(versions: Mapping[str, Harness]) -> str | None:
    stable = harnesses.served_harnesses(versions.values()).stable
    return None if stable is None else stable["version"]


def add_with_tools(versions: dict[str, Harness], before: Harness, tools: Mapping[str, HarnessTool | None]) -> str:
    """Return the version that is `before` with other tools (None: unchanged); add it as a proposal if it is new."""
    changed = [one for one in tools.values() if one is not None]
    changed += [one for one in before["tools"] if one["name"] not in tools]
    content = {**before, "tools": sorted(changed, key=lambda one: one["name"])}
    found = harnesses.version_of(content)
    if found not in versions:
        parents = [before["version"]] if before["version"] else []
        made = {**content, "parents": parents, "proposer": AUTHOR, "state": "proposed", "pinned": False, "share": 0.0}
        versions[found] = harnesses.propose(versions, cast(Harness, made))
    return found
