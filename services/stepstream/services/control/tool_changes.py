"""Carry changes of tools from one harness version to another. Pure."""

from collections.abc import Mapping
from typing import cast

from stepstream.services.control.history import AUTHOR
from stepstream.topics.events import Harness, HarnessTool
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
