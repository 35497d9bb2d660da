"""Baselines that decide for a simulated fleet: train every N trajectories, fixed-horizon A/B, weekly review."""

from stepstream.analytics.success import Attempts
from stepstream.services.control.simulate.scenarios import Pulled
from stepstream.services.control.simulate.world import GAINS, World


class TrainEvery:
    """Train on each N trajectories and serve the result to all (AReaL 2.0)."""

    def __init__(self, n: int = 1000) -> None:
        self._n, self._last = n, 0

    def act(self, world: World) -> list[tuple[Pulled, str]]:
        if world.served - self._last < self._n:
            return []
        self._last = world.served
        gain = float(world.rng.normal(0, 0.02))
        for name in ("weights", "poison", "gamed"):
            if name in world.faults and world.tick >= world.onset:
                gain = GAINS[name]
        version = world.publish("weights", gain)
        world.serve("weights", version)
        return [(("train", "weights"), ""), (("promote", "weights"), version)]


class FixedHorizon:
    """Try each candidate on half of the trajectories until 400 an arm, then a two-sided z-test at 0.05."""

    horizon = 400

    def act(self, world: World) -> list[tuple[Pulled, str]]:
        if world.canary is None:
            if not world.candidates:
                return []
            chosen = world.candidates[0]
            world.start_canary(chosen, 0.5)
            return [(("canary", chosen.lever), chosen.version)]
        arms = []
        for track in ("canary", "stable"):
            ended = [one.success for one in world.outcomes if one.track == track]
            arms.append(Attempts(len(ended), sum(map(bool, ended))))
        if min(arm.n for arm in arms) < self.horizon:
            return []
        canary = world.canary
        (n1, c1), (n0, c0) = arms
        p = (c1 + c0) / (n1 + n0)
        z = (c1 / n1 - c0 / n0) / max(1e-9, (p * (1 - p) * (1 / n1 + 1 / n0)) ** 0.5)
        if z > 1.96:
            world.serve(canary.lever, canary.version)
            return [(("promote", canary.lever), canary.version)]
        world.end_canary()
        return [(("rollback", canary.lever), canary.version)]


class WeeklyReview:
    """A person who looks once a week, always finds the cause and always does the right thing."""

    ticks = 84

    def act(self, world: World) -> list[tuple[Pulled, str]]:
        if world.tick % self.ticks or world.tick < world.onset:
            return []
        done: list[tuple[Pulled, str]] = []
        if "tool" in world.faults:
            world.tool_disabled = True
            done.append((("disable", "tools"), ""))
        if "drift" in world.faults:
            world.take_back("weights", "w0")
            done.append((("rollback", "weights"), "w0"))
        if "gamed" in world.faults:
            world.learning = False
            done.append((("pause", "weights"), ""))
        if "weights" in world.faults and not world.learning:
            world.train()
            done.append((("train", "weights"), ""))
        for candidate in list(world.candidates):
            if world.gain[candidate.version] > 0:
                world.serve(candidate.lever, candidate.version)
                done += [(("canary", candidate.lever), ""), (("promote", candidate.lever), candidate.version)]
            elif world.gain[candidate.version] < 0:
                done.append((("rollback", candidate.lever), candidate.version))
        return done
