"""Define the scenarios of synthetic fleets: the fault, and the right and allowed actions. Pure."""

from dataclasses import dataclass

Pulled = tuple[str, str]
"""Action and lever."""


@dataclass(frozen=True)
class Scenario:
    """Fault that begins at a random tick."""

    faults: frozenset[str]
    """Names that `World` knows."""
    required: frozenset[Pulled] = frozenset()
    allowed: frozenset[Pulled] = frozenset()
    """Further actions that are no fault."""
    traffic: int = 50
    """Trajectories a tick."""


def _trial(lever: str) -> frozenset[Pulled]:
    return frozenset({("canary", lever), ("widen", lever), ("promote", lever)})


_UNDECIDED = frozenset({("canary", "weights"), ("widen", "weights"), ("rollback", "weights")})

SCENARIOS = {
    "nothing": Scenario(frozenset()),
    "tool breaks": Scenario(frozenset({"tool"}), frozenset({("disable", "tools")})),
    "better examples": Scenario(frozenset({"examples"}), frozenset({("canary", "prompt"), ("promote", "prompt")}),
                                _trial("prompt")),
    "weights can learn": Scenario(frozenset({"weights"}), frozenset({("train", "weights"), ("promote", "weights")}),
                                  _trial("weights")),
    "poisoned checkpoint": Scenario(frozenset({"poison"}), frozenset({("rollback", "weights")}), _UNDECIDED),
    "equal version": Scenario(frozenset({"equal"}), frozenset(), _UNDECIDED),
    "gamed reward": Scenario(frozenset({"gamed"}), frozenset({("pause", "weights")})),
    "slow drift": Scenario(frozenset({"drift"}), frozenset({("rollback", "weights")})),
    "changed task mix": Scenario(frozenset({"mix"})),
    "tool and examples": Scenario(
        frozenset({"tool", "examples"}),
        frozenset({("disable", "tools"), ("canary", "prompt"), ("promote", "prompt")}),
        _trial("prompt"),
    ),
    "tool and poison": Scenario(
        frozenset({"tool", "poison"}), frozenset({("disable", "tools"), ("rollback", "weights")}), _UNDECIDED
    ),
    "tiny traffic": Scenario(frozenset({"equal"}), frozenset(), _UNDECIDED, traffic=2),
}  # fmt: skip
