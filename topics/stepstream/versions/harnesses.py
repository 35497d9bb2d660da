"""Define harness versions: their identity by content, which of them serve an agent, and the decisions about them. Pure.

A harness version is data: instructions, examples and how many of them a conversation gets, changes of tools, limit of
attempts, model. Its name is the digest of that content, so the same content is the same version everywhere. The topic
`harnesses` holds the newest record of each version. Each decision is one record with the agent's next revision: of the
versions in state `stable` (and of those in state `canary`) the one with the highest revision serves. So no reader ever
sees half of a decision.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import orjson

from stepstream.topics.events import Harness, HarnessState, Track
from stepstream.versions.rollouts import track_of

PARTS = ("instructions", "examples", "examples_shown", "tools", "attempts", "model")
"""Fields of the content."""
_LATER_PARTS = {"examples_shown": 0}
"""Parts of later releases with their default, at which the version is that of the earlier releases."""


class HarnessRefused(Exception):
    """The decision is impossible; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class ServedHarnesses:
    """Harness versions that serve one agent."""

    stable: Harness | None = None
    """None: the agent's own calls, unmodified."""
    canary: Harness | None = None
    """None: no canary."""

    def of(self, trajectory_id: str) -> tuple[Track, Harness | None]:
        """Return the track and the version of a trajectory; every gateway computes the same."""
        canary = self.canary
        if canary is not None:
            name = f"harness:{canary['agent']}"
            if track_of(canary["tenant"], trajectory_id, name, canary["share"]) == "canary":
                return "canary", canary
        return "stable", self.stable


def part_digests(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 (hex) of each part of a content, over its JSON with sorted keys."""
    return {
        part: hashlib.sha256(orjson.dumps(content[part], option=orjson.OPT_SORT_KEYS)).hexdigest()
        for part in PARTS
        if part not in _LATER_PARTS or content[part] != _LATER_PARTS[part]
    }


def version_of(content: Mapping[str, Any]) -> str:
    """Return the version of a content: the first 16 hexadecimal digits of SHA-256 over its parts' digests."""
    digests = "\n".join(f"{part}={digest}" for part, digest in part_digests(content).items())
    return hashlib.sha256(digests.encode()).hexdigest()[:16]


def record_key(tenant: str, agent: str, version: str) -> str:
    """Return the key of a version's records."""
    return orjson.dumps([tenant, agent, version]).decode()


def versions_of(records: Iterable[Harness], tenant: str, agent: str) -> dict[str, Harness]:
    """Return the records of one agent by version."""
    return {one["version"]: one for one in records if one["tenant"] == tenant and one["agent"] == agent}


def served_harnesses(versions: Iterable[Harness]) -> ServedHarnesses:
    """Return what serves an agent: `versions` holds the newest record of each of its versions, in any order."""
    newest: dict[HarnessState, Harness] = {}
    for one in versions:
        before = newest.get(one["state"])
        if before is None or _order(before) < _order(one):
            newest[one["state"]] = one
    stable, canary = newest.get("stable"), newest.get("canary")
    if canary is not None and not canary["share"] > 0:
        canary = None
    if stable is not None and stable["pinned"]:
        canary = None
    return ServedHarnesses(stable, canary)


def propose(versions: Mapping[str, Harness], harness: Harness) -> Harness:
    """Return the record of a new version, whose `version` is that of its content.

    Raises:
        HarnessRefused: the agent has the version, a parent is unknown, or the content changes nothing.
    """
    version = version_of(harness)
    if version in versions:
        raise HarnessRefused(f"version {version} exists in state {versions[version]['state']}")
    if not any(harness[part] for part in PARTS if part != "examples_shown"):  # type: ignore[literal-required]
        raise HarnessRefused("the harness changes nothing: give instructions, examples, tools, attempts or a model")
    for parent in harness["parents"]:
        _check_known(versions, parent)
    return cast(Harness, {**harness, "version": version, "state": "proposed"} | {"revision": _next(versions)})


def start_canary(versions: Mapping[str, Harness], version: str, share: float) -> Harness:
    """Return the record that puts a version on a share of trajectories; a running canary is replaced.

    Raises:
        HarnessRefused: it is unknown, stable, refused, or the agent is pinned; or the share is not in (0, 1].
    """
    if not 0 < share <= 1:
        raise HarnessRefused(f"the share {share:g} is not in (0, 1]: write 0.1 for a tenth of the trajectories")
    return _decided(versions, _open(versions, version), "canary", share=share)


def promote(versions: Mapping[str, Harness], version: str) -> Harness:
    """Return the record that lets a version serve all trajectories that begin from now on.

    Raises:
        HarnessRefused: it is unknown, stable, refused, or the agent is pinned.
    """
    return _decided(versions, _open(versions, version), "stable")


def take_back(versions: Mapping[str, Harness], version: str | None = None) -> Harness:
    """Return the record that takes back the canary, or else the stable version; the version before it serves again.

    Raises:
        HarnessRefused: nothing serves, another version is named, or the stable version is pinned.
    """
    served = served_harnesses(versions.values())
    target = served.canary or served.stable
    if target is None:
        raise HarnessRefused("no harness version serves the agent")
    if version is not None and version not in {one["version"] for one in (served.canary, served.stable) if one}:
        raise HarnessRefused(f"version {version} does not serve the agent; {target['version']} does")
    if version is not None:
        target = versions[version]
    if target["pinned"]:
        raise HarnessRefused(f"version {target['version']} is pinned: unpin it first")
    return _decided(versions, target, "retired")


def refuse(versions: Mapping[str, Harness], version: str) -> Harness:
    """Return the record that refuses a proposal for good.

    Raises:
        HarnessRefused: it is unknown, or no proposal.
    """
    found = _check_known(versions, version)
    if found["state"] != "proposed":
        raise HarnessRefused(f"version {version} is {found['state']}, and no proposal")
    return _decided(versions, found, "refused")


def pin(versions: Mapping[str, Harness], version: str, *, pinned: bool = True) -> Harness:
    """Return the record that pins the stable version, or unpins it.

    Raises:
        HarnessRefused: it is not the stable version.
    """
    found = _check_known(versions, version)
    stable = served_harnesses(versions.values()).stable
    if stable is None or stable["version"] != version:
        raise HarnessRefused(f"version {version} is not the stable one: promote it first")
    return cast(Harness, {**found, "pinned": pinned, "revision": _next(versions)})


def lineage(versions: Mapping[str, Harness], version: str) -> list[Harness]:
    """Return a version and its ancestors, each once, children before parents.

    Raises:
        HarnessRefused: it is unknown.
    """
    found = [_check_known(versions, version)]
    for one in found:  # grows while it is read
        known = {each["version"] for each in found}
        found += [versions[name] for name in one["parents"] if name in versions and name not in known]
    return found


def _open(versions: Mapping[str, Harness], version: str) -> Harness:
    """Return a version that may serve."""
    found = _check_known(versions, version)
    if found["state"] == "refused":
        raise HarnessRefused(f"version {version} was refused: {found['reason'] or 'no reason given'}; propose another")
    stable = served_harnesses(versions.values()).stable
    if stable is not None and stable["version"] == version:
        raise HarnessRefused(f"version {version} is the stable one already")
    if stable is not None and stable["pinned"]:
        raise HarnessRefused(f"version {stable['version']} is pinned: unpin it first")
    return found


def _decided(versions: Mapping[str, Harness], harness: Harness, state: HarnessState, *, share: float = 0.0) -> Harness:
    fields = {"state": state, "share": share, "revision": _next(versions), "pinned": False}
    return cast(Harness, {**harness, **fields})


def _check_known(versions: Mapping[str, Harness], version: str) -> Harness:
    if version not in versions:
        known = ", ".join(sorted(versions)) or "none"
        raise HarnessRefused(f"version {version} of the agent is unknown; known: {known}")
    return versions[version]


def _next(versions: Mapping[str, Harness]) -> int:
    return max((one["revision"] for one in versions.values()), default=0) + 1


def _order(harness: Harness) -> tuple[int, str]:
    """Two people who decide at once may write one revision: the version then decides, for every reader alike."""
    return harness["revision"], harness["version"]
