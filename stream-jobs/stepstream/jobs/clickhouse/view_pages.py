"""Generate docs/views/ from the catalogue of views; `stepstream schemas generate` writes it. Pure."""

from collections.abc import Sequence

from stepstream.jobs.clickhouse.views import DIMENSIONS, View, views


def pages() -> dict[str, str]:
    """Return the pages of docs/views/ by file name: one for each view, and their index `README.md`."""
    return {"README.md": _index(), **{f"{view.name}.md": _page(view) for view in views().values()}}


def _index() -> str:
    of_tenants = [name for name, view in views().items() if "tenant" in view.keys]
    both = [name for name in _without("policy_version") if name in of_tenants]
    harness = [name for name in _without("harness_version") if name in of_tenants and name not in both]
    lines = [
        "# Views for your own dashboards",
        "",
        "Each is a ClickHouse view with the parameters `since` and `until` (UTC): "
        "`SELECT * FROM success_by_version(since = now() - INTERVAL 7 DAY, until = now())`. Names and columns are "
        "stable; `stepstream store migrate` creates them. `stepstream query NAME --since 7d --by model,day` prints "
        "one.",
        "",
        f"Each row is of one tenant: filter by `tenant`. {_names(_without('tenant'))} have rows of models, which all "
        "tenants share.",
        "",
        "A figure that is not defined is null, and `reason` says why. Rates are averages over tasks where the page "
        "says so. Models are never pooled, and of the rows of tenants neither policy versions nor harness versions, "
        f"with these exceptions: {_names(both)} pool both, and {_names(harness)} harness versions.",
        "",
        "| view | meaning |",
        "|---|---|",
        *(f"| [`{view.name}`]({view.name}.md) | {_cell(view.meaning)} |" for view in views().values()),
    ]
    return "\n".join(lines) + "\n"


def _without(dimension: str) -> list[str]:
    return [view.name for view in views().values() if dimension not in view.keys]


def _names(names: Sequence[str]) -> str:
    *most, last = (f"`{name}`" for name in names)
    return f"{', '.join(most)} and {last}"


def _page(view: View) -> str:
    cached = "More than 500 ms over long ranges at 100 million steps: cache its answer." if view.cached else ""
    stored = (
        "The rows of cohorts at rest that lie in the range as a whole are stored: a long range computes only the "
        "others. Another grain computes all, which takes more than 500 ms over long ranges at 100 million steps."
    )
    grain = ", ".join(f"`{name}`" for name in (*view.grain, *view.series))
    choices = ", ".join(f"`{name}`" for name in view.choices)
    lines = [
        f"# `{view.name}`: {view.title}",
        "",
        view.meaning,
        "",
        f"One row for each {grain}. Reads {', '.join(f'`{table}`' for table in view.reads)}. {cached}".rstrip(),
        *([stored] if view.materialized else []),
        *([f"`stepstream query {view.name} --by …` takes any of these, and {choices}."] if choices else []),
        f"It never pools {', '.join(f'`{name}`' for name in view.keys)}." if view.keys else "Its grain is fixed.",
        "",
        "| column | type | unit | meaning |",
        "|---|---|---|---|",
        *(f"| `{name}` | | | {DIMENSIONS[name]} |" for name in view.grain),
        *(
            f"| `{column.name}` | {_cell(column.type)} | {column.unit} | {_cell(column.meaning)} |"
            for column in view.columns
        ),
        "",
        "## Example",
        "",
        "```sql",
        view.example.strip(),
        "```",
        "",
        "## Edge cases",
        "",
        *(f"- {edge}" for edge in view.edges),
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
