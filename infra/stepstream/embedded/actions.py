"""What the stack does itself between starting processes; each is safe to do again."""

import importlib
from pathlib import Path

from stepstream.config import Settings
from stepstream.embedded.errors import StackError


def apply_topics(settings: Settings) -> None:
    """Creates or alters the topics and registers their schemas, from the catalogue."""
    from stepstream.topics import admin

    admin.apply(settings)


def migrate_store(settings: Settings) -> None:
    """Brings the analytics store's tables and views to what the code expects."""
    from stepstream.jobs import migrate

    migrate.migrate(settings)


def publish_base(settings: Settings) -> None:
    """Publishes the base model as the root of a lineage, where there is none yet or a new one is asked for.

    Raises:
        StackError: `stack.base_model` names neither a folder nor a function that makes one.
    """
    if not settings.stack.base_model:
        return
    from stepstream.learner.lineage import read_versions
    from stepstream.learner.publish import publish_root
    from stepstream.topics.codec import Codec

    model = settings.learner.model
    if (
        settings.stack.new_lineage
        or read_versions(settings.kafka, Codec(settings.schema_registry)).newest(model) is None
    ):
        publish_root(settings, _base_folder(settings), model)


def _base_folder(settings: Settings) -> Path:
    name = settings.stack.base_model
    if Path(name).is_dir():
        return Path(name)
    module, _, function = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), function)(settings)
    except (ImportError, AttributeError, ValueError) as error:
        raise StackError(
            f"stack.base_model '{name}' is neither a folder nor module:function ({error}); "
            "set STEPSTREAM_STACK_BASE_MODEL"
        ) from error
    assert isinstance(made, Path)
    return made
