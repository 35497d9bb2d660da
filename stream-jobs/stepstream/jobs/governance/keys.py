"""The secrets behind the pseudonyms."""

from stepstream.config import Settings

from stepstream.topics.secret_files import kept


def pseudonym_key(settings: Settings) -> bytes:
    """`govern.pseudonym_key`; where it is not set, a random one that is made once and kept with the local data.

    Workers on several machines need the setting: with a key each, one value would get several pseudonyms.
    """
    declared = settings.govern.pseudonym_key.get_secret_value()
    return declared.encode() if declared else kept(settings.paths.data / "secrets" / "pseudonym.key")
