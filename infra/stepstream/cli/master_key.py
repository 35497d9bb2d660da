"""`stepstream master-key`: create master keys, count the keys under each, and wrap keys again after a rotation."""

from collections import Counter
from contextlib import AbstractContextManager, closing
from typing import Any

import click
import orjson

from stepstream.config import Settings, load
from stepstream.config.master_keys import join_master_keys, new_master_key
from stepstream.config.secrets import replace_secret
from stepstream.topics.catalogue import SUBJECT_KEYS

_FLUSH_S = 60.0


@click.group("master-key")
def master_key() -> None:
    """Master keys, which wrap the keys of persons."""


@master_key.command("create")
@click.option("--into-file", is_flag=True, help="Put it first in DATA/secrets/master.key instead of printing it.")
def create(into_file: bool) -> None:
    """Create a master key.

    To replace one: append the new key to STEPSTREAM_SEAL_MASTER_KEY of all programs and restart them, put it first and
    restart them, then run `stepstream master-key rewrap`. Keep the oldest: persons' pseudonyms derive from it.
    """
    created = new_master_key()
    if not into_file:
        click.echo(created)
        return
    settings = load()
    if settings.seal.master_key.get_secret_value():
        raise click.ClickException("seal.master_key is set, so no program reads the file: change the setting instead")
    file = settings.paths.data / "secrets" / "master.key"
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_secret(file, (join_master_keys(created, file.read_bytes()) if file.exists() else created).encode())
    click.echo(f"{file} wraps new keys under {created.split('.')[1]}: restart the programs, then rewrap")


@master_key.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(as_json: bool) -> None:
    """Count the keys of persons by their master key. Exit status 1: a master key is missing here."""
    from stepstream.crypto.master_key import is_destroyed

    with _log() as settings:
        master, rows = _master(settings), _read(settings)
    counts = Counter(row["master_key_id"] for row in rows.values() if not is_destroyed(row))
    missing = sorted({row["master_key_id"] for row in rows.values() if not (is_destroyed(row) or master.opens(row))})
    facts = {
        "keys": dict(sorted(counts.items())),
        "destroyed": sum(map(is_destroyed, rows.values())),
        "missing_master_keys": missing,
    }
    if as_json:
        click.echo(orjson.dumps(facts).decode())
    else:
        for name, count in sorted(counts.items()):
            click.echo(f"{name or '(without id)':<14} {count} keys{', MISSING HERE' if name in missing else ''}")
        click.echo(f"{facts['destroyed']} keys are destroyed")
    if missing:
        raise SystemExit(1)


@master_key.command("rewrap")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rewrap(as_json: bool) -> None:
    """Wrap all keys under the first master key. After an interruption run it again."""
    from stepstream.crypto.key_service import WrongMasterKey
    from stepstream.topics.codec import Codec
    from stepstream.topics.producer import EventProducer

    done = 0
    with _log() as settings, closing(Codec(settings)) as codec:
        master = _master(settings)
        rows = _read(settings)
        producer = EventProducer(settings.kafka, codec, "stepstream")
        for key_id, row in rows.items():
            try:
                again = master.wrapped_again(row)
            except WrongMasterKey as error:
                raise click.ClickException(f"key {key_id}: {error}") from None
            if again is not None:
                producer.send(SUBJECT_KEYS, key_id, again)
                producer.poll(0)
                done += 1
        producer.flush(_FLUSH_S)
    click.echo(orjson.dumps({"rewrapped": done}).decode() if as_json else f"wrapped {done} keys again")


def _master(settings: Settings) -> Any:
    from stepstream.crypto.master_key import load_master_key

    master = load_master_key(settings, create=False)
    if master is None:
        raise click.ClickException("there is no master key here: set STEPSTREAM_SEAL_MASTER_KEY")
    return master


def _read(settings: Settings) -> dict[str, Any]:
    from stepstream.cli import compacted_topics

    return compacted_topics.read(settings, SUBJECT_KEYS)


def _log() -> AbstractContextManager[Settings]:
    """Start the broker if it is down, reporting that on standard error."""
    from stepstream.embedded.stack import ensure_broker

    return ensure_broker(load(), lambda line: click.echo(line, err=True))
