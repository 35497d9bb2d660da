"""`stepstream erase`: erase a person from log and store, and list the checkpoints that trained on them."""

import getpass
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
import orjson

from stepstream.config import Settings, load
from stepstream.embedded.addresses import resolve_addresses

if TYPE_CHECKING:
    from stepstream.jobs.erasure.erase import ErasureReport

_UNREACHABLE = 3


@click.command()
@click.option(
    "--subject",
    "subjects",
    metavar="USER",
    multiple=True,
    help="A person, as `user` in their records; may be repeated.",
)
@click.option("--tenant", default="default", show_default=True, help="Their tenant.")
@click.option("--wait", "wait_s", default=120.0, show_default=True, help="Seconds to wait for each job.")
@click.option("--rewrite", is_flag=True, help="Rewrite the store's parts in this pass, not at night.")
@click.option("--missing-keys", is_flag=True, help="List keys that sealed records name and `subject-keys` lacks.")
@click.option("--declare-destroyed", is_flag=True, help="With --missing-keys: erase for ever what they sealed.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as an object.")
def erase(
    subjects: tuple[str, ...],
    tenant: str,
    wait_s: float,
    rewrite: bool,
    missing_keys: bool,
    declare_destroyed: bool,
    as_json: bool,
) -> None:
    """Erase persons from the log and the store; list the checkpoints that trained on them.

    One search of the log finds the records of all of them. A proof of what was removed is written to the log for
    each: see `stepstream erasures`. Broker, registry, store and the jobs must run. After an interruption run it again:
    it continues.

    No query of the store returns the persons' rows afterwards. Their bytes stay on its disk until it rewrites its
    parts, every `store.rewrite_hours`; with --rewrite it does so before the command ends.

    Exit status 0: erased; 1: some records stay readable, as the output lists, or the erasure is impossible; 3: a part
    does not answer, or a job is too far behind.
    """
    from clickhouse_connect.driver.exceptions import ClickHouseError

    from stepstream.jobs.clickhouse.connection import StoreUnavailableError, connect
    from stepstream.jobs.erasure import erase
    from stepstream.jobs.erasure.delete_from_log import JobBehind
    from stepstream.jobs.erasure.find_records import versions_trained_on
    from stepstream.jobs.erasure.findings import Person
    from stepstream.jobs.erasure.proof import remaining_reason
    from stepstream.learner.lineage import of_log, read_versions
    from stepstream.topics.client import wait_for_kafka
    from stepstream.topics.codec import Codec

    settings = resolve_addresses(load())
    if missing_keys == bool(subjects) or (declare_destroyed and not missing_keys) or (rewrite and missing_keys):
        raise click.UsageError(
            "give either --subject, with or without --rewrite, or --missing-keys, with or without --declare-destroyed"
        )
    wait_for_kafka(settings.kafka)
    if not subjects:
        _erase_missing_keys(settings, declare_destroyed, as_json)
        return
    try:
        with closing(connect(settings, database=settings.clickhouse.database)) as client:
            reports = erase.erase(
                settings,
                client,
                [Person(tenant, subject) for subject in subjects],
                requested_by=getpass.getuser(),
                wait_s=wait_s,
                say=lambda line: click.echo(line, err=True),
                rewrite=rewrite,
            )
    except (StoreUnavailableError, ClickHouseError, JobBehind, OSError) as error:
        click.echo(f"stepstream: {error}", err=True)
        sys.exit(_UNREACHABLE)
    except erase.CannotErase as error:
        raise click.ClickException(str(error)) from None
    with closing(Codec(settings)) as codec:
        versions = read_versions(settings.kafka, codec)
    checkpoints = [
        checkpoint for by in versions.by_model.values() for checkpoint in of_log(by.values(), settings.kafka.prefix)
    ]
    facts = []
    for done in reports:
        direct, descend = versions_trained_on(checkpoints, done.labels)
        facts.append(_facts(done) | {"checkpoints": direct, "descendants": descend})
        if not as_json:
            click.echo(f"proof: stepstream erasures show {done.request_id}")
            click.echo(f"erased: {done.records_unreadable} records unreadable, {done.rows_deleted} rows deleted")
            if done.rows_hidden:
                click.echo(f"hidden: {done.rows_hidden} of the rows stay on disk until the store rewrites its parts")
            click.echo(f"checkpoints that trained on the person: {', '.join(direct) or 'none'}")
            click.echo(f"checkpoints that descend from those: {', '.join(descend) or 'none'}")
        for topic, records in sorted(done.left.items()):
            click.echo(
                f"stepstream: {records} of their records stay readable on {topic}: {remaining_reason(topic)}", err=True
            )
    if as_json:
        click.echo(orjson.dumps(facts if len(subjects) > 1 else facts[0], option=orjson.OPT_INDENT_2).decode())
    if any(done.left for done in reports):
        sys.exit(1)


def _facts(done: "ErasureReport") -> dict[str, Any]:
    return {
        "subject": done.subject,
        "request_id": done.request_id,
        "keys_destroyed": done.keys_destroyed,
        "records_unreadable": done.records_unreadable,
        "rows_deleted": done.rows_deleted,
        "rows_hidden": done.rows_hidden,
        "partitions_cut": done.partitions_cut,
        "consents_forgotten": done.consents_forgotten,
        "objects_removed": done.objects_removed,
        "records_left_in_the_clear": sum(done.left.values()),
        "left": done.left,
        "trajectories": done.trajectories,
    }


def _erase_missing_keys(settings: Settings, declare: bool, as_json: bool) -> None:
    """List the missing keys; declare them destroyed on request. Exit with status 1 if some are still missing."""
    from stepstream.jobs.erasure import erase
    from stepstream.jobs.erasure import missing_keys as keys

    try:
        missing = keys.find_missing_keys(settings, lambda line: click.echo(line, err=True))
    except erase.CannotErase as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        rows = [{"key_id": key_id, "tenant": key.tenant, "records": key.records} for key_id, key in missing.items()]
        click.echo(orjson.dumps({"missing": rows, "destroyed": declare}).decode())
    else:
        for key_id, key in missing.items():
            click.echo(f"{key_id}  {key.tenant:<16} {', '.join(f'{n} of {t}' for t, n in key.records.items())}")
    if declare:
        keys.declare_destroyed(settings, missing, getpass.getuser())
    elif missing:
        sys.exit(1)
