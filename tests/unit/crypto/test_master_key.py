"""Master keys have ids and a check value, wrap the keys of each tenant apart, and can be replaced."""

from pathlib import Path

import pytest
from pydantic import ValidationError
from sample_records import step
from sealing import MASTER, Keys

from stepstream.config import PathsSettings, SealSettings, Settings
from stepstream.config.master_keys import join_master_keys, new_master_key, parse_master_file, parse_master_keys
from stepstream.config.secrets import replace_secret
from stepstream.crypto.key_service import LocalKeyService, WrongMasterKey
from stepstream.crypto.master_key import MasterKey, destroyed, load_master_key


def settings(*keys: str) -> Settings:
    return Settings(seal=SealSettings.model_validate({"master_key": ",".join(keys)}))


def loaded(configured: Settings) -> MasterKey:
    master = load_master_key(configured)
    assert master is not None
    return master


def test_a_mistyped_master_key_is_refused() -> None:
    key = new_master_key()
    [parsed] = parse_master_keys(key)
    assert parsed.key_id == key.split(".")[1]
    for place in range(len(key)):
        if key[place] not in "._-":
            wrong = key[:place] + ("1" if key[place] != "1" else "2") + key[place + 1 :]
            with pytest.raises(ValueError, match="master key"):
                parse_master_keys(wrong)
    prefix, key_id, secret, check = key.split(".")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    unused_bit = alphabet[alphabet.index(secret[-1]) ^ 1]  # of the last of 43 characters, which are 258 bits
    with pytest.raises(ValueError, match="mistyped"):
        parse_master_keys(f"{prefix}.{key_id}.{secret[:-1]}{unused_bit}.{check}")
    with pytest.raises(ValidationError, match="legacy:SECRET"):
        settings("any string")
    with pytest.raises(ValidationError, match="twice"):
        settings(key, key)


def test_no_message_and_no_repr_holds_the_secret() -> None:
    key = new_master_key()
    [parsed] = parse_master_keys(key)
    secret = key.split(".")[2]
    assert secret not in repr(parsed)
    with pytest.raises(ValueError, match="check value") as raised:
        parse_master_keys(key[:-1] + ("0" if key[-1] != "0" else "1"))
    assert secret not in str(raised.value)


def test_a_key_does_not_unwrap_for_another_tenant() -> None:
    service = LocalKeyService(parse_master_keys(new_master_key()))
    wrapped = service.wrap("acme", bytes(32))
    assert service.unwrap("acme", service.primary_id, wrapped) == bytes(32)
    with pytest.raises(WrongMasterKey):
        service.unwrap("other", service.primary_id, wrapped)


def test_after_a_rotation_old_keys_open_and_persons_keep_their_pseudonym() -> None:
    old, new = new_master_key(), _with_id("ffffffffffff", bytes(32))
    before, both = loaded(settings(old)), loaded(settings(new, old))
    key = before.new_key("acme", before.subject("acme", "ada"))
    assert both.subject("acme", "ada") == before.subject("acme", "ada")
    assert both.opens(key)
    again = both.wrapped_again(key)
    assert again is not None
    assert (again["key_id"], again["occurred_at_us"]) == (key["key_id"], key["occurred_at_us"])
    assert again["master_key_id"] == "ffffffffffff" != key["master_key_id"]
    assert both.wrapped_again(again) is None
    assert both.wrapped_again(destroyed(key)) is None
    nonce = bytes(12)
    assert both.cipher(again).encrypt(nonce, b"x", None) == before.cipher(key).encrypt(nonce, b"x", None)
    with pytest.raises(WrongMasterKey, match="ffffffffffff"):
        before.cipher(again)


def test_keys_of_a_release_without_ids_are_read_and_rewrapped() -> None:
    keys = Keys()
    keys.sealer().seal("steps", step(user="ada"))
    [legacy] = keys.made
    assert legacy["master_key_id"] == ""
    both = loaded(settings(new_master_key(), MASTER.seal.master_key.get_secret_value()))
    assert both.subject("default", "ada") == legacy["subject"]
    assert both.opens(legacy)
    again = both.wrapped_again(legacy)
    assert again is not None
    assert both.opens(again)


def test_a_file_of_an_earlier_release_gets_a_new_master_key_in_front(tmp_path: Path) -> None:
    file = tmp_path / "secrets" / "master.key"
    file.parent.mkdir()
    file.write_bytes(bytes(range(200, 232)))
    local = Settings(paths=PathsSettings(data=tmp_path))
    subject = loaded(local).subject("t", "ada")
    replace_secret(file, join_master_keys(new_master_key(), file.read_bytes()).encode())
    replace_secret(file, join_master_keys(_with_id("ffffffffffff", bytes(32)), file.read_bytes()).encode())
    assert [key.key_id for key in parse_master_file(file.read_bytes())][::2] == ["ffffffffffff", ""]
    assert loaded(local).subject("t", "ada") == subject
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(WrongMasterKey, match=r"mistyped|not a master key"):
        load_master_key(local)


def _with_id(key_id: str, secret: bytes) -> str:
    from base64 import urlsafe_b64encode

    from stepstream.config import master_keys

    encoded = urlsafe_b64encode(secret).rstrip(b"=").decode()
    return f"ssk1.{key_id}.{encoded}.{master_keys._check(key_id, secret)}"
