"""Load the own rules that a policy names from installed packages (entry points `stepstream.control_rules`)."""

import inspect
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from stepstream.services.control.decide.own_rules import OwnRule
from stepstream.services.control.decide.policy import ControlPolicy, PolicyError, at_line

GROUP = "stepstream.control_rules"


def load_rules(policy: ControlPolicy, document: str = "") -> tuple[OwnRule, ...]:
    """Return the policy's own rules, in its order. `document`: the policy's text, for the line of a fault.

    Raises:
        PolicyError: no installed package registers a name, several do, or it is no function.
    """
    return tuple(_load(name, document) for name in policy.own_rules)


def _load(name: str, document: str) -> OwnRule:
    points = list(entry_points(group=GROUP, name=name))
    if not points:
        known = ", ".join(sorted({point.name for point in entry_points(group=GROUP)})) or "none"
        raise PolicyError(at_line(document, ["own_rules"], f"no rule {name!r}; installed rules: {known}"))
    if len(points) > 1:
        packages = ", ".join(sorted(point.value for point in points))
        raise PolicyError(at_line(document, ["own_rules"], f"several packages have a rule {name!r}: {packages}"))
    try:
        rule = points[0].load()
        source = Path(inspect.getfile(rule)).read_bytes()
    except (ImportError, AttributeError, TypeError, OSError) as error:
        raise PolicyError(at_line(document, ["own_rules"], f"rule {name!r} cannot be loaded: {error}")) from None
    return OwnRule(name, f"{_package(points[0])} {sha256(source).hexdigest()}", rule)


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.module
