"""`stepstream schemas`: list the event schemas; generate Python code and reference pages."""

from pathlib import Path

import click

from stepstream.embedded.errors import StackError


@click.group()
def schemas() -> None:
    """Schemas of the events."""


@schemas.command("list")
def list_schemas() -> None:
    """List the names of the schemas."""
    from stepstream.schemas import names

    for name in names():
        click.echo(name)


@schemas.command()
def docs() -> None:
    """Print the protocol reference page (Markdown)."""
    from stepstream.topics.codegen import protocol_page

    click.echo(protocol_page(), nl=False)


@schemas.command()
def generate() -> None:
    """Write the Python events, the generated pages of docs/ and the chart's files; works only in a checkout."""
    from stepstream.cli.dashboards import DASHBOARDS
    from stepstream.config.reference import settings_page
    from stepstream.core.metrics import metrics_page
    from stepstream.jobs.clickhouse.view_pages import pages
    from stepstream.topics import codegen

    package = Path(codegen.__file__).parent
    checkout = package.parent.parent.parent
    if not (checkout / "pyproject.toml").is_file():
        raise StackError(f"{checkout} is no checkout of Stepstream: run `stepstream schemas generate` in a checkout")
    deploy = checkout / "infra" / "deploy"
    views = checkout / "docs" / "views"
    views.mkdir(exist_ok=True)
    for path, text in (
        *((views / name, text) for name, text in pages().items()),
        (package / "events.py", codegen.python_module()),
        (checkout / "docs" / "protocol.md", codegen.protocol_page()),
        (checkout / "docs" / "settings.md", settings_page()),
        (checkout / "docs" / "metrics.md", metrics_page()),
        (deploy / "chart" / "topics.json", codegen.chart_topics()),
        (deploy / "chart" / "users.json", codegen.chart_users()),
        # A chart contains the files that its templates read.
        (deploy / "chart" / "rules.yml", (deploy / "prometheus" / "rules.yml").read_text(encoding="utf-8")),
        *((deploy / "chart" / "dashboards" / f"{board.uid}.json", board.text()) for board in DASHBOARDS),
    ):
        path.write_text(text, encoding="utf-8")
        click.echo(f"wrote {path.relative_to(checkout)}")
