"""`stepstream plan`: size a deployment for a number of agents and steps, from measured rates."""

from dataclasses import asdict

import click
import orjson

from stepstream.config import load


@click.command()
@click.option("--agents", type=click.IntRange(1), required=True, help="Agents that call at the same time.")
@click.option("--steps-per-second", type=click.FloatRange(0, min_open=True), required=True, help="Steps of all agents.")
@click.option("--steps-per-trajectory", type=click.FloatRange(1), default=4.0, show_default=True, help="Mean length.")
@click.option("--step-bytes", type=click.IntRange(1), help="Size of a step's record; default: as measured.")
@click.option("--days", type=click.FloatRange(0, min_open=True), default=30.0, show_default=True, help="Retention.")
@click.option("--replication", type=click.IntRange(1), default=3, show_default=True, help="Copies of each topic.")
@click.option("--model-parameters", type=click.FloatRange(0), default=0.0, help="Weights of the model, as 7e9.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def plan(
    agents: int,
    steps_per_second: float,
    steps_per_trajectory: float,
    step_bytes: int | None,
    days: float,
    replication: int,
    model_parameters: float,
    as_json: bool,
) -> None:
    """Size gateways, brokers, partitions, jobs, disks and memory; print the formula and source of each figure.

    Sources are pages of docs/measured. The effective settings give `label.keep_days` and `http.connections`.
    """
    from stepstream.cli.sizing import STEP_BYTES, Fleet, plan_of

    settings = load()
    fleet = Fleet(
        agents=agents,
        steps_per_s=steps_per_second,
        steps_per_trajectory=steps_per_trajectory,
        step_bytes=step_bytes or STEP_BYTES,
        days=days,
        keep_days=settings.label.keep_days,
        replication=replication,
        connections=settings.http.connections,
        model_parameters=model_parameters,
    )
    figures = plan_of(fleet)
    if as_json:
        click.echo(orjson.dumps([asdict(figure) for figure in figures], option=orjson.OPT_INDENT_2))
        return
    for figure in figures:
        click.echo(f"{figure.part:20} {figure.amount:>10,g} {figure.unit:18} {figure.reason}")
