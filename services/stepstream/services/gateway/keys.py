"""Who may call: API keys as the topic `api-keys` has them, known also while Kafka is away."""

from stepstream.config import Settings
from stepstream.services.gateway.credentials import Presented, allow, missing_key
from stepstream.services.gateway.errors import KeysUnknown
from stepstream.topics.table import Table

TOPIC = "api-keys"


class Keys:
    """Follows the keys in a thread of its own. Close it."""

    def __init__(self, settings: Settings) -> None:
        self._required = settings.gateway.require_key
        self._table = Table(settings, TOPIC, snapshot=settings.paths.data / "gateway" / "api-keys.json")

    def tenant(self, shown: Presented, scope: str) -> str | None:
        """The tenant of the key that a call shows; None: it shows none of ours, and needs none.

        Raises:
            Unauthorized: a key is required, or this one is not valid.
            Forbidden: the key may not be used for this.
            KeysUnknown: the keys have not been read yet, and this one is not in the last snapshot.
        """
        if not shown.key_id:
            if self._required:
                raise missing_key()
            return None
        record = self._table.get(shown.key_id)
        if record is None and not self._table.current:
            raise KeysUnknown("API keys are not known yet, since Kafka has not been reached: try again")
        return allow(shown, record, scope)

    def has(self, shown: Presented, scope: str) -> bool:
        """Whether a call that `tenant` has let in shows a key with a scope; without a key it has none."""
        record = self._table.get(shown.key_id) if shown.key_id else None
        return record is not None and scope in record["scopes"]

    def close(self) -> None:
        """Stops following."""
        self._table.close()
