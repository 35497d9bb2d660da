"""Decide the next rollout of a model from what the log says now: promote, roll back, pin, start a canary, follow.

Each function returns the whole next state of the model, because the newest rollout replaces the one before.
"""

from dataclasses import dataclass, replace

from stepstream.topics.events import Rollout, new_rollout
from stepstream.versions.rollouts import ModelVersions, ServedVersions, ancestors, is_taken_back


class RolloutRefused(Exception):
    """The decision is impossible; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The next rollout of a model, without identity, time and author."""

    action: str
    stable: int | None
    """None: the newest published version."""
    canary: int | None = None
    share: float = 0.0
    previous_stable: int | None = None
    pinned: frozenset[int] = frozenset()
    taken_back: frozenset[int] = frozenset()
    """Versions that were taken back for harm."""

    def event(self, model: str, *, event_id: str, occurred_at_us: int, reason: str, author: str) -> Rollout:
        """Return it as a record of the topic `rollouts`."""
        return new_rollout(
            event_id=event_id,
            occurred_at_us=occurred_at_us,
            model=model,
            stable_version=self.stable,
            canary_version=self.canary,
            canary_share=self.share,
            previous_stable_version=self.previous_stable,
            pinned_versions=sorted(self.pinned),
            taken_back_versions=sorted(self.taken_back),
            action=self.action,
            reason=reason,
            author=author,
        )


def promote(model: str, versions: ModelVersions, version: int) -> Decision:
    """Fix the stable version; a canary of the same version ends. Neither it nor its ancestors count as taken back.

    Raises:
        RolloutRefused: the version does not exist.
    """
    _check_usable(model, versions, version)
    served = versions.served
    changed = served.stable is not None and served.stable != version
    return replace(
        _without_canary_of(version, _unchanged("promote", served)),
        stable=version,
        taken_back=_without(version, versions),
        previous_stable=served.stable if changed else served.previous_stable,
    )


def rollback(model: str, versions: ModelVersions, to: int | None = None) -> Decision:
    """Take back what was put out last; a canary ends in any case.

    Without `to`: while a canary runs, only the canary ends. If stable follows the newest version, and that was trained
    from the canary, stable becomes the newest version that was not, fixed. Without a canary stable returns to the
    version before the newest promotion; if none is known, to the parent of the version that it serves. The stable
    version is then fixed. The version that ends counts as taken back: versions trained from it are not tried, nor
    trained further.

    Raises:
        RolloutRefused: there is no version to return to, or it does not exist.
    """
    served = versions.served
    now = replace(_unchanged("rollback", served), canary=None, share=0.0)
    if to is None and served.canary is not None:
        taken_back = now.taken_back | {served.canary}
        return replace(now, stable=_without_harm(versions, taken_back), taken_back=taken_back)
    target = _rollback_target(model, versions) if to is None else to
    _check_usable(model, versions, target)
    if target == served.stable and served.canary is None and not served.follows_newest:
        raise RolloutRefused(f"{model}@{target} is the stable version already: name an earlier one with --to")
    before = set() if served.stable is None else {served.stable}
    taken_back = _without(target, versions) | before - {target}
    return replace(now, stable=target, previous_stable=None, taken_back=taken_back)


def start_canary(model: str, versions: ModelVersions, version: int, share: float) -> Decision:
    """Put a version on a share of the trajectories; a running canary is replaced. It no longer counts as taken back.

    Raises:
        RolloutRefused: the version does not exist or is the stable one, or the share is not in (0, 1].
    """
    if not 0 < share <= 1:
        _check_usable(model, versions, version)
        raise RolloutRefused(f"the share {share:g} is not in (0, 1]: write 0.1 for a tenth of the trajectories")
    return _canary(model, versions, version, share)


def start_shadow(model: str, versions: ModelVersions, version: int) -> Decision:
    """Let workers load a version as a canary that serves no trajectory: requests that name the track reach it.

    Raises:
        RolloutRefused: the version does not exist or is the stable one.
    """
    return _canary(model, versions, version, 0.0)


def _canary(model: str, versions: ModelVersions, version: int, share: float) -> Decision:
    _check_usable(model, versions, version)
    served = versions.served
    if version == served.stable:
        remedy = ": fix an earlier version first with `stepstream models promote`" if served.follows_newest else ""
        why = f"; {model} follows its newest version" if served.follows_newest else ""
        raise RolloutRefused(f"{model}@{version} is the stable version already{why}{remedy}")
    now = _unchanged("canary", served)
    return replace(now, canary=version, share=share, taken_back=_without(version, versions))


def stop_canary(model: str, versions: ModelVersions) -> Decision:
    """End the canary without judging it; its trajectories go on with the stable version.

    Raises:
        RolloutRefused: there is none.
    """
    if versions.served.canary is None:
        raise RolloutRefused(f"{model} has no canary")
    return replace(_unchanged("canary", versions.served), canary=None, share=0.0)


def pin(model: str, versions: ModelVersions, version: int) -> Decision:
    """Keep a version's files from retention; served versions do not change.

    Raises:
        RolloutRefused: the version does not exist.
    """
    _check_usable(model, versions, version)
    now = _unchanged("pin", versions.served)
    return replace(now, pinned=now.pinned | {version})


def unpin(model: str, versions: ModelVersions, version: int) -> Decision:
    """Let retention remove a version's files again.

    Raises:
        RolloutRefused: it is not pinned.
    """
    now = _unchanged("unpin", versions.served)
    if version not in now.pinned:
        pinned = ", ".join(str(number) for number in sorted(now.pinned)) or "none"
        raise RolloutRefused(f"{model}@{version} is not pinned; pinned versions: {pinned}")
    return replace(now, pinned=now.pinned - {version})


def follow(model: str, versions: ModelVersions) -> Decision:
    """Let stable follow the newest published version; a canary of that version ends, and none counts as taken back.

    Raises:
        RolloutRefused: the model has no version.
    """
    served = versions.served
    if served.newest is None:
        raise RolloutRefused(_unknown_model(model))
    now = replace(_unchanged("follow", served), stable=None, previous_stable=None, taken_back=frozenset())
    return _without_canary_of(served.newest, now)


def _unchanged(action: str, served: ServedVersions) -> Decision:
    return Decision(
        action,
        None if served.follows_newest else served.stable,
        served.canary,
        served.canary_share,
        served.previous_stable,
        served.pinned,
        served.taken_back,
    )


def _without(version: int, versions: ModelVersions) -> frozenset[int]:
    """Return the versions that count as taken back once a version is put out again."""
    return versions.served.taken_back - set(ancestors(version, versions.checkpoints))


def _without_harm(versions: ModelVersions, taken_back: frozenset[int]) -> int | None:
    """Return the next stable version once a canary is taken back; None: the newest, as before."""
    served, checkpoints = versions.served, versions.checkpoints
    if not served.follows_newest:
        return served.stable
    if served.newest is None or not is_taken_back(served.newest, checkpoints, taken_back):
        return None
    present = (version for version, one in checkpoints.items() if one["removed_at_us"] is None)
    return max((one for one in present if not is_taken_back(one, checkpoints, taken_back)), default=None)


def _without_canary_of(version: int, decision: Decision) -> Decision:
    return replace(decision, canary=None, share=0.0) if decision.canary == version else decision


def _rollback_target(model: str, versions: ModelVersions) -> int:
    served = versions.served
    if served.stable is None:
        raise RolloutRefused(_unknown_model(model))
    if served.previous_stable is not None:
        return served.previous_stable
    checkpoint = versions.checkpoints.get(served.stable)
    parent = None if checkpoint is None else checkpoint["parent_version"]
    if parent is None:
        raise RolloutRefused(
            f"{model}@{served.stable} has no parent and no promotion before it is known: name the version to serve "
            "with --to; `stepstream models list` shows all"
        )
    return parent


def _check_usable(model: str, versions: ModelVersions, version: int) -> None:
    checkpoint = versions.checkpoints.get(version)
    if checkpoint is not None and checkpoint["removed_at_us"] is None:
        return
    if not versions.checkpoints:
        raise RolloutRefused(_unknown_model(model))
    newest = versions.served.newest
    present = "no version is left" if newest is None else f"its newest version is {newest}"
    if checkpoint is None:
        raise RolloutRefused(f"{model}@{version} was never published; {present}: see `stepstream models list`")
    why = f" ({checkpoint['removal_reason']})" if checkpoint["removal_reason"] else ""
    raise RolloutRefused(f"the files of {model}@{version} were removed{why}; {present}: see `stepstream models list`")


def _unknown_model(model: str) -> str:
    return f"no version of '{model}' was published: see `stepstream models list`"
