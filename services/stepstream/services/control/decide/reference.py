"""Write the reference of control policies for docs/control.md. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from stepstream.services.control.decide.policy import ControlPolicy, LeverPolicy, RulesPolicy, Section


def policy_tables() -> str:
    """Return Markdown: each entry of a policy with its default and meaning, and the limits of each lever."""
    default = ControlPolicy()
    tables = [
        "\n".join(["| entry | default | meaning |", "|---|---|---|", *_rows("", default)]),
        "\n".join(["| `[canary]` | default | meaning |", "|---|---|---|", *_rows("", default.canary)]),
        "\n".join(["| `[levers.NAME]` | default | meaning |", "|---|---|---|", *_rows("", LeverPolicy())]),
        "\n".join(_levers(default)),
        f"`[rules]` disables a rule: {', '.join(f'`{name} = false`' for name in RulesPolicy.model_fields)}.",
    ]
    return "\n\n".join(tables)


def _rows(prefix: str, section: Section) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if not isinstance(value, Section | Mapping):
            yield f"| `{prefix}{name}` | `{_toml(value)}` | {field.description} |"


def _levers(policy: ControlPolicy) -> Iterator[str]:
    """Yield a table of the entries in which levers differ."""
    names = [
        name for name in LeverPolicy.model_fields if len({getattr(one, name) for one in policy.levers.values()}) > 1
    ]
    yield f"| lever | {' | '.join(f'`{name}`' for name in names)} | approvals in effect |"
    yield "|---" * (len(names) + 2) + "|"
    for lever, limits in policy.levers.items():
        values = " | ".join(f"`{_toml(getattr(limits, name))}`" for name in names)
        yield f"| `{lever}` | {values} | {policy.approvals_for(lever)} |"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f"{value:g}"
