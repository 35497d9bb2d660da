"""Fold the schemas topic into a view of subjects, ids and levels.

`Fold` keeps only the last value of each key, and `View` depends only on these values. So a replay of the compacted
topic gives the same view as a replay of all records, and the order between keys does not matter.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stepstream.services.registry import errors
from stepstream.services.registry.avro_text import canonical
from stepstream.services.registry.compatibility import DEFAULT_LEVEL, Level
from stepstream.services.registry.records import ConfigKey, DeleteKey, IdKey, Key, SchemaKey, SchemaValue, Value


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a subject."""

    subject: str
    version: int
    id: int
    schema: str
    deleted: bool


class Fold:
    """The last value of each key, up to an offset."""

    def __init__(self) -> None:
        self.next_offset = 0
        self._values: dict[Key, Value] = {}

    def apply(self, offset: int, key: Key, value: Value | None) -> None:
        """Apply one record; a redelivered one changes nothing."""
        if offset < self.next_offset:
            return
        self.next_offset = offset + 1
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value

    def view(self) -> "View":
        """Return an immutable view of the current values."""
        return View(self._values)


class View:
    """Subjects, ids and levels at one offset."""

    def __init__(self, values: Mapping[Key, Value]) -> None:
        deleted_up_to = {
            key.subject: value for key, value in values.items() if isinstance(key, DeleteKey) and isinstance(value, int)
        }
        self._deleted_up_to = deleted_up_to
        versions: dict[str, list[Version]] = defaultdict(list)
        self.schemas: dict[int, str] = {}
        self.ids: dict[str, int] = {}
        self.last_id = 0
        schemas = [
            (key, value)
            for key, value in values.items()
            if isinstance(key, SchemaKey) and isinstance(value, SchemaValue)
        ]
        for key, value in sorted(schemas, key=lambda pair: (pair[1].id, pair[0].subject, pair[0].version)):
            deleted = value.deleted or key.version <= deleted_up_to.get(key.subject, 0)
            versions[key.subject].append(Version(key.subject, key.version, value.id, value.schema, deleted))
            self.schemas.setdefault(value.id, value.schema)
            self.ids.setdefault(_identity_of(value.schema), value.id)
            self.last_id = max(self.last_id, value.id)
        mark = values.get(IdKey())
        if isinstance(mark, int):
            self.last_id = max(self.last_id, mark)
        self._versions = {
            subject: tuple(sorted(of_subject, key=lambda version: version.version))
            for subject, of_subject in sorted(versions.items())
        }
        self._levels = {
            key.subject: value
            for key, value in values.items()
            if isinstance(key, ConfigKey) and isinstance(value, Level)
        }

    def subjects(self, *, deleted: bool = False) -> list[str]:
        """Return the subjects with a live version; `deleted`: also those without."""
        return [name for name, versions in self._versions.items() if deleted or not all(v.deleted for v in versions)]

    def all_versions(self) -> Iterable[Version]:
        """Return every version of every subject, also softly deleted ones."""
        return (version for versions in self._versions.values() for version in versions)

    def versions(self, subject: str, *, deleted: bool = False) -> tuple[Version, ...]:
        """Return a subject's versions, oldest first."""
        versions = self._versions.get(subject, ())
        return versions if deleted else tuple(version for version in versions if not version.deleted)

    def next_version(self, subject: str) -> int:
        """Return the number of the next version.

        A permanently deleted number is not reused while the log has the subject's deletion that covers it.
        """
        all_versions = self.versions(subject, deleted=True)
        return max(all_versions[-1].version if all_versions else 0, self._deleted_up_to.get(subject, 0)) + 1

    def version(self, subject: str, number: int | None, *, deleted: bool = False) -> Version:
        """Return one version; `number` None: the latest.

        Raises:
            RegistryError: 40401 no such subject, 40402 no such version.
        """
        versions = self.versions(subject, deleted=deleted)
        if not versions:
            raise errors.subject_not_found(subject)
        if number is None:
            return versions[-1]
        for version in versions:
            if version.version == number:
                return version
        raise errors.version_not_found(number)

    def level(self, subject: str | None) -> Level | None:
        """Return the level set for this subject (None: the global one); None: not set."""
        return self._levels.get(subject)

    def effective_level(self, subject: str | None) -> Level:
        """Return the level in force for a subject."""
        return self.level(subject) or self.level(None) or DEFAULT_LEVEL


def _identity_of(schema: str) -> str:
    """Return the text that identifies a schema; another registry may have formatted the stored text differently."""
    try:
        return canonical(schema)
    except errors.RegistryError:
        return schema
