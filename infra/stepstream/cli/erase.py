"""`stepstream erase`: make everything of a person unreadable or gone, and say which checkpoints trained on them."""

import getpass
import sys
from contextlib import closing

import click
import orjson

from stepstream.config import load
from stepstream.embedded.addresses import wire

_UNREACHABLE = 3


@click.command()
@click.option("--subject", required=True, metavar="USER", help="The person, as `user` in their records.")
@click.option("--tenant", default="default", show_default=True, help="Their tenant.")
@click.option("--wait", "wait_s", default=120.0, show_default=True, help="Seconds to wait for each job.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as an object.")
def erase(subject: str, tenant: str, wait_s: float, as_json: bool) -> None:
    """Erase a person from the log and the analytics store; list the checkpoints that trained on them.

    Broker, registry, store and the jobs must run. Run it again if it is cut off: it goes on from there.

    Exit status 0: erased; 1: some records are left in the clear, as it says, or it cannot be done; 3: something does
    not answer, or a job did not come far enough in time.
    """
    from clickhouse_connect.driver.exceptions import ClickHouseError

    from stepstream.jobs.clickhouse.connection import StoreUnavailableError, connect
    from stepstream.jobs.erasure import erase
    from stepstream.jobs.erasure.delete_from_log import NotInTime
    from stepstream.jobs.erasure.find_records import Person, trained_on
    from stepstream.learner.lineage import read_versions
    from stepstream.topics.client import wait_for_kafka
    from stepstream.topics.codec import Codec

    settings = wire(load())
    wait_for_kafka(settings.kafka)
    try:
        with closing(connect(settings.clickhouse, database=settings.clickhouse.database)) as client:
            done = erase.erase(
                settings,
                client,
                Person(tenant, subject),
                requested_by=getpass.getuser(),
                wait_s=wait_s,
                say=lambda line: click.echo(line, err=True),
            )
    except (StoreUnavailableError, ClickHouseError, NotInTime) as error:
        click.echo(f"stepstream: {error}", err=True)
        sys.exit(_UNREACHABLE)
    except erase.CannotErase as error:
        raise click.ClickException(str(error)) from None
    with closing(Codec(settings.schema_registry)) as codec:
        versions = read_versions(settings.kafka, codec)
    checkpoints = [checkpoint for by in versions.by_model.values() for checkpoint in by.values()]
    direct, descend = trained_on(checkpoints, done.labels)
    if as_json:
        facts = {
            "subject": done.subject,
            "keys_destroyed": done.keys_destroyed,
            "records_unreadable": done.records_unreadable,
            "rows_deleted": done.rows_deleted,
            "partitions_cut": done.partitions_cut,
            "consents_forgotten": done.consents_forgotten,
            "records_left_in_the_clear": sum(done.left.values()),
            "left": done.left,
            "trajectories": done.trajectories,
            "checkpoints": direct,
            "descendants": descend,
        }
        click.echo(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo(f"erased: {done.records_unreadable} records unreadable, {done.rows_deleted} rows deleted")
        click.echo(f"checkpoints that trained on the person: {', '.join(direct) or 'none'}")
        click.echo(f"checkpoints that descend from those: {', '.join(descend) or 'none'}")
    for topic, records in sorted(done.left.items()):
        click.echo(f"stepstream: {records} records of theirs are left readable on {topic}: {_why(topic)}", err=True)
    if done.left:
        sys.exit(1)


def _why(topic: str) -> str:
    """Why records were left on a topic, and what to do."""
    if topic == "open-traces":
        return "they wait for the rest of their traces; run this again in a minute (they are gone in two days)"
    if topic == "labeled-trajectories":
        return (
            "they are from before records were sealed, name nobody, or are of a trajectory shared with somebody else "
            "and from before such labels were sealed under the keys of all; delete them with kafka-delete-records, or "
            "erase the other person too"
        )
    return (
        "they are from before records were sealed, or name nobody in a trajectory of theirs; delete them with "
        "kafka-delete-records, or let them go with their topic"
    )
