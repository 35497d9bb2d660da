"""Parse and check a control policy: rules, levers with their limits, canaries, approvals. Pure.

A policy is a TOML file; every entry is optional. An invalid entry or a contradiction is refused with its line.
"""

import re
import tomllib
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stepstream.services.control.decide.policy_lines import line_of
from stepstream.services.control.decide.records import CANARY_RULES, LEVERS, Action, Lever

ROLES = ("viewer", "operator", "admin")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_DAY_MINUTES = 1440


class PolicyError(ValueError):
    """A control policy is invalid; the message names the line, the entry and the remedy."""


class Section(BaseModel):
    """A table of the file. Unknown entries are errors: a typo must not disable a limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LeverPolicy(Section):
    """`[levers.NAME]`: limits of a lever."""

    enabled: bool = Field(True, description="False: the lever is never pulled.")
    cost: float = Field(1.0, ge=0, description="Relative cost; the cheapest lever with evidence goes first.")
    blast_radius: float = Field(0.1, ge=0, le=1, description="Largest share of trajectories that it is tried on.")
    reversible: bool = Field(True, description="False: it cannot be undone, so a person must approve it.")
    cooldown_s: float = Field(3600.0, ge=0, description="Seconds after it was pulled before it is pulled again.")
    budget_per_day: int = Field(4, ge=0, description="Largest number of pulls in 24 hours.")
    approvals: int = Field(0, ge=0, le=5, description="People who must approve it.")
    roles: tuple[str, ...] = Field(("operator", "admin"), description="Roles that may approve it.")
    watch_s: float = Field(1800.0, gt=0, description="Seconds during which its effect is watched; no other lever then.")


class CanaryPolicy(Section):
    """`[canary]`: how a version is tried."""

    shares: tuple[float, ...] = Field((0.1, 0.3), description="Shares of trajectories, rising.")
    alpha: float = Field(0.01, gt=0, lt=0.5, description="Largest chance to promote a version that is no better.")
    rollback_alpha: float = Field(0.05, gt=0, lt=0.5, description="Largest chance to take a sound version back.")
    margin: float = Field(0.1, ge=0, lt=1, description="Loss of success that the test of a wider share tolerates.")
    harm_limit: float = Field(0.05, gt=0, lt=1, description="Share of harmed trajectories that is tolerated.")
    harm_budget: int = Field(25, ge=1, description="Successes that may be lost to a version before it is taken back.")
    max_trajectories: int = Field(1000, ge=10, description="Compared trajectories at which an undecided canary ends.")
    k: int = Field(3, ge=2, description="k of pass^k, which must not fall while pass@1 rises.")
    shadow: Literal["off", "try", "required"] = Field(
        "off",
        description="Replay of recorded prompts on new weights before they serve anybody: `off`; `try`, left out where "
        "it cannot be done; `required`, a version without one is not tried.",
    )


class RulesPolicy(Section):
    """`[rules]`: False disables a rule."""

    tool_errors: bool = True
    change_after_promotion: bool = True
    diverging_rewards: bool = True
    format_failures: bool = True
    headroom: bool = True
    new_version: bool = True
    gradient: bool = True
    coverage: bool = True
    staleness: bool = True


_DEFAULT_LEVERS: dict[Lever, LeverPolicy] = {
    "tools": LeverPolicy(cost=1, blast_radius=0.1),
    "prompt": LeverPolicy(cost=2, blast_radius=0.3),
    "skills": LeverPolicy(cost=2, blast_radius=0.3),
    "memory": LeverPolicy(cost=3, blast_radius=0.3),
    "task_mix": LeverPolicy(cost=4, blast_radius=0.0),
    "weights": LeverPolicy(cost=10, blast_radius=0.3),
}


class ControlPolicy(Section):
    """The whole file."""

    tenant: str = Field("default", min_length=1, description="Tenant that it applies to.")
    agents: tuple[str, ...] = Field(("*",), min_length=1, description="Patterns of agents that it applies to.")
    models: tuple[str, ...] = Field(("*",), min_length=1, description="Patterns of models that it applies to.")
    freeze: bool = Field(False, description="True: nothing is started; what runs may be taken back.")
    quiet_hours: tuple[str, ...] = Field((), description="Times (UTC), as 22:00-06:00, at which nothing is started.")
    decisions_per_day: int = Field(20, ge=0, description="Largest number of pulls of all levers in 24 hours.")
    max_age_s: float = Field(900.0, gt=0, description="Age of statistics above which the decision is to hold.")
    min_trajectories: int = Field(50, ge=1, description="Trajectories below which nothing is decided.")
    approve_above: float = Field(0.5, ge=0, le=1, description="Blast radius above which a person must approve.")
    approve_promotions: bool = Field(
        False, description="True: a person must approve each promotion, which reaches all trajectories at once."
    )
    change_effect: float = Field(0.15, gt=0, lt=1, description="Fall of success that the change point looks for.")
    change_limit: float = Field(
        10.0, gt=0, description="CUSUM limit h; a false alarm within T trajectories has a chance of at most T/e^h."
    )
    format_limit: float = Field(0.1, gt=0, lt=1, description="Share of format failures above which prompts help.")
    variance_limit: float = Field(
        0.2, gt=0, lt=1, description="Share of groups with variance above which weights learn."
    )
    coverage_limit: float = Field(0.5, gt=0, le=1, description="Share of task families that training must sample.")
    staleness_limit: float = Field(8.0, ge=0, description="Versions of staleness above which learning pauses.")
    own_rules: tuple[str, ...] = Field((), description="Rules of installed packages that are asked as well.")
    rules: RulesPolicy = RulesPolicy()
    canary: CanaryPolicy = CanaryPolicy()
    levers: dict[Lever, LeverPolicy] = Field(default_factory=lambda: dict(_DEFAULT_LEVERS))

    @classmethod
    def parse(cls, document: str) -> Self:
        """Parse and check a file's text.

        Raises:
            PolicyError: the text is not TOML, an entry is unknown or invalid, or entries contradict each other.
        """
        try:
            tables = tomllib.loads(document)
        except tomllib.TOMLDecodeError as error:
            raise PolicyError(f"it is not TOML: {error}") from None
        try:
            policy = cls.model_validate(_with_defaults(tables))
        except ValidationError as error:
            first = error.errors()[0]
            path = [str(part) for part in first["loc"] if part != "[key]"]
            raise PolicyError(at_line(document, path, f"{first['msg']}{_known(path)}")) from None
        for path, fault in contradictions(policy):
            raise PolicyError(at_line(document, path, fault))
        return policy

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of the values in effect: two files with the same meaning have the same hash."""
        return sha256(self.model_dump_json().encode()).hexdigest()

    def covers(self, tenant: str, agent: str, model: str) -> bool:
        """Return True if the policy applies to an agent and model."""
        return (
            tenant == self.tenant
            and any(fnmatchcase(agent, pattern) for pattern in self.agents)
            and any(fnmatchcase(model, pattern) for pattern in self.models)
        )

    def approvals_for(self, lever: Lever, action: Action = "canary") -> int:
        """Return how many people must approve an action with the lever."""
        limits = self.levers[lever]
        needed = not limits.reversible or limits.blast_radius > self.approve_above
        needed = needed or (action == "promote" and self.approve_promotions)
        return max(limits.approvals, int(needed))

    def is_quiet(self, at_us: int) -> bool:
        """Return True within quiet hours."""
        minute = at_us // 60_000_000 % _DAY_MINUTES
        return any(minute in span for span in map(_minutes, self.quiet_hours))


def contradictions(policy: ControlPolicy) -> list[tuple[list[str], str]]:
    """Return the entries that contradict each other: path and fault."""
    faults: list[tuple[list[str], str]] = []
    for hours in policy.quiet_hours:
        if not _HOURS.fullmatch(hours):
            return [(["quiet_hours"], f"{hours!r} is no time span; write 22:00-06:00")]
    if len({minute for hours in policy.quiet_hours for minute in _minutes(hours)}) == _DAY_MINUTES:
        faults.append((["quiet_hours"], "they cover the whole day, so nothing would ever start; set freeze = true"))
    if twice := {name for name in policy.own_rules if policy.own_rules.count(name) > 1}:
        faults.append((["own_rules"], f"{min(twice)!r} is named twice"))
    if builtin := [name for name in policy.own_rules if name in {*RulesPolicy.model_fields, *CANARY_RULES}]:
        faults.append((["own_rules"], f"{builtin[0]!r} is a built-in rule; choose another name"))
    shares = policy.canary.shares
    if not shares or any(not 0 < share <= 0.5 for share in shares) or list(shares) != sorted(set(shares)):
        faults.append((["canary", "shares"], f"{list(shares)} must rise and lie above 0, at most 0.5"))
    for lever, limits in policy.levers.items():
        path = ["levers", lever]
        if unknown := [role for role in limits.roles if role not in ROLES]:
            faults.append(([*path, "roles"], f"no role {unknown[0]!r}; roles are {', '.join(ROLES)}"))
        canaried = lever in {"prompt", "skills", "memory", "weights"}
        if policy.approvals_for(lever, "promote" if canaried else "canary") and not limits.roles:
            faults.append(([*path, "roles"], "it needs an approval that no role may give"))
        if limits.enabled and not limits.budget_per_day:
            faults.append(([*path, "budget_per_day"], "the lever is enabled with a budget of 0; set enabled = false"))
        if canaried and limits.enabled and shares and max(shares) > limits.blast_radius:
            fault = f"canary.shares reaches {max(shares):g}, above this lever's blast radius {limits.blast_radius:g}"
            faults.append(([*path, "blast_radius"], fault))
    return faults


def _with_defaults(tables: dict[str, Any]) -> dict[str, Any]:
    """Return the tables with the defaults of each lever beneath its entries."""
    given = tables.get("levers", {})
    if not isinstance(given, dict) or not all(isinstance(entries, dict) for entries in given.values()):
        return tables
    levers = {name: limits.model_dump() for name, limits in _DEFAULT_LEVERS.items()}
    return tables | {"levers": levers | {name: levers.get(name, {}) | entries for name, entries in given.items()}}


def _minutes(hours: str) -> set[int]:
    """Return the minutes of the day of a span; one that ends before it begins passes midnight."""
    match = _HOURS.fullmatch(hours)
    assert match is not None
    h1, m1, h2, m2 = map(int, match.groups())
    begin, end = h1 * 60 + m1, h2 * 60 + m2
    return set(range(begin, end)) if begin < end else set(range(begin, _DAY_MINUTES)) | set(range(end))


def _known(path: list[str]) -> str:
    """Return the known names of a table in which a name is unknown."""
    tables: dict[str, type[Section]] = {"": ControlPolicy, "canary": CanaryPolicy, "rules": RulesPolicy}
    if path[0] == "levers" and len(path) > 1:
        names = list(LEVERS) if len(path) == 2 else list(LeverPolicy.model_fields)
    else:
        table = tables.get(".".join(path[:-1]))
        names = [] if table is None else list(table.model_fields)
    return "" if path[-1] in names or not names else f"; known: {', '.join(names)}"


def at_line(document: str, path: list[str], fault: str) -> str:
    """Return a fault with the line of its entry in the file; an entry that the file lacks is marked as default."""
    line = line_of(document, path)
    return f"line {line}: {'.'.join(path)}: {fault}" if line else f"{'.'.join(path)} (default): {fault}"
