"""Decide the records that each writing request appends to the log.

Every decision is a pure function of a view, so it can be repeated after another instance wrote first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepstream.services.registry import errors
from stepstream.services.registry.avro_text import canonical, normalised
from stepstream.services.registry.compatibility import Level, incompatibilities
from stepstream.services.registry.records import ConfigKey, DeleteKey, IdKey, RegistryRecord, SchemaKey, SchemaValue
from stepstream.services.registry.view import Version, View


@dataclass(frozen=True, slots=True)
class Write:
    """Records to append in one transaction, and the answer after they are read back; no records: nothing changes."""

    answer: Any
    records: Sequence[RegistryRecord] = ()


def find(view: View, subject: str, schema: str, *, normalize: bool, deleted: bool = False) -> Version | None:
    """Return a subject's newest version with this schema (canonical text); None: it has none."""
    target = normalised(schema) if normalize else schema
    for version in reversed(view.versions(subject, deleted=deleted)):
        existing = normalised(version.schema) if normalize else canonical(version.schema)
        if existing == target:
            return version
    return None


def register(view: View, subject: str, schema: str, *, normalize: bool) -> Write:
    """Register the schema as the subject's next version, under its existing id or the next one.

    Raises:
        RegistryError: 409, the schema breaks the subject's compatibility level.
    """
    existing = find(view, subject, schema, normalize=normalize)
    if existing is not None:
        return Write({"id": existing.id})
    level = view.effective_level(subject)
    earlier = [(version.version, canonical(version.schema)) for version in view.versions(subject)]
    if reasons := incompatibilities(level, schema, earlier):
        raise errors.incompatible(subject, level, reasons)
    stored = normalised(schema) if normalize else schema
    schema_id = view.ids.get(stored, view.last_id + 1)
    return Write({"id": schema_id}, [(SchemaKey(subject, view.next_version(subject)), SchemaValue(schema_id, stored))])


def delete_subject(view: View, subject: str, *, permanent: bool) -> Write:
    """Delete a subject: softly (its ids still resolve), or permanently.

    Raises:
        RegistryError: 40401, 40404 or 40405.
    """
    all_versions = view.versions(subject, deleted=True)
    live = view.versions(subject)
    if not all_versions:
        raise errors.subject_not_found(subject)
    if not permanent:
        if not live:
            raise errors.subject_soft_deleted(subject)
        numbers = [version.version for version in live]
        return Write(numbers, [(DeleteKey(subject), all_versions[-1].version), (ConfigKey(subject), None)])
    if live:
        raise errors.subject_not_soft_deleted(subject)
    deletions: list[RegistryRecord] = [(SchemaKey(subject, version.version), None) for version in all_versions]
    return Write(
        [version.version for version in all_versions], [(IdKey(), view.last_id), *deletions, (DeleteKey(subject), None)]
    )


def delete_version(view: View, subject: str, number: int | None, *, permanent: bool) -> Write:
    """Delete one version softly or permanently; `number` None: the latest.

    Raises:
        RegistryError: 40401, 40402, 40406 or 40407.
    """
    version = view.version(subject, number, deleted=number is not None)
    key = SchemaKey(subject, version.version)
    if permanent:
        if not version.deleted:
            raise errors.version_not_soft_deleted(subject, version.version)
        return Write(version.version, [(IdKey(), view.last_id), (key, None)])
    if version.deleted:
        raise errors.version_soft_deleted(subject, version.version)
    return Write(version.version, [(key, SchemaValue(version.id, version.schema, deleted=True))])


def set_level(view: View, subject: str | None, level: Level) -> Write:
    """Set the compatibility level of a subject (None: the global one)."""
    records: list[RegistryRecord] = [] if view.level(subject) is level else [(ConfigKey(subject), level)]
    return Write({"compatibility": level}, records)


def unset_level(view: View, subject: str | None) -> Write:
    """Reset a subject to the global level (None: the global level to its default).

    Raises:
        RegistryError: 40408, the subject has no level of its own.
    """
    level = view.level(subject)
    if level is not None:
        return Write({"compatibilityLevel": level}, [(ConfigKey(subject), None)])
    if subject is not None:
        raise errors.no_subject_level(subject)
    return Write({"compatibilityLevel": view.effective_level(None)})
