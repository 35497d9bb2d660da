"""Test the credentials of the store."""

from pathlib import Path

import pytest

from stepstream.config import Settings, effective, load
from stepstream.config.secrets import store_credentials


def settings(folder: Path, **variables: str) -> Settings:
    return load({"STEPSTREAM_PATHS_DATA": str(folder), **{f"STEPSTREAM_{k}": v for k, v in variables.items()}})


def test_the_embedded_store_gets_two_random_passwords_once(tmp_path: Path) -> None:
    writer, reader = (store_credentials(settings(tmp_path), reads_only=reads) for reads in (False, True))
    assert (writer[0], reader[0]) == ("default", "reader")
    assert len({writer[1], reader[1]}) == 2
    assert store_credentials(settings(tmp_path)) == writer
    for file in (tmp_path / "secrets").iterdir():
        assert file.stat().st_mode & 0o777 == 0o600


def test_declared_passwords_win(tmp_path: Path) -> None:
    declared = settings(tmp_path, CLICKHOUSE_PASSWORD="a", CLICKHOUSE_READER_PASSWORD="b", CLICKHOUSE_READER_USER="eva")
    assert store_credentials(declared) == ("default", "a")
    assert store_credentials(declared, reads_only=True) == ("eva", "b")
    assert not (tmp_path / "secrets").exists()


@pytest.mark.parametrize(
    "variables", [{"CLICKHOUSE_URL": "https://clickhouse.internal:8443"}, {"STACK_EXTERNAL": "store"}]
)
def test_another_clickhouse_gets_no_password_of_this_folder(tmp_path: Path, variables: dict[str, str]) -> None:
    other = settings(tmp_path, CLICKHOUSE_USER="ada", **variables)
    assert store_credentials(other) == store_credentials(other, reads_only=True) == ("ada", "")
    assert not (tmp_path / "secrets").exists()


def test_the_passwords_are_not_printed(tmp_path: Path) -> None:
    passwords = [store_credentials(settings(tmp_path), reads_only=reads)[1] for reads in (False, True)]
    shown = str(effective(settings(tmp_path), {}))
    assert not any(password in shown for password in passwords)
