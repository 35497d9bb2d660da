"""Publish the base model as the root of a lineage: `python -m stepstream.embedded.base_model`.

It publishes only if the model has no version yet or `stack.new_lineage` is set.
"""

import importlib
from contextlib import closing
from pathlib import Path

from stepstream.config import Settings
from stepstream.core.process import Fatal, Stop, run
from stepstream.learner.lineage import read_versions
from stepstream.learner.publish import publish_root
from stepstream.topics.codec import Codec


def main(settings: Settings, _stop: Stop) -> None:
    """Publish the base model unless a version exists.

    Raises:
        Fatal: `stack.base_model` is neither a folder nor `module:function`.
    """
    model = settings.learner.model
    with closing(Codec(settings)) as codec:
        newest = read_versions(settings.kafka, codec).newest(model)
    if newest is None or settings.stack.new_lineage:
        publish_root(settings, _folder(settings), model)


def _folder(settings: Settings) -> Path:
    name = settings.stack.base_model
    if Path(name).is_dir():
        return Path(name)
    module, _, function = name.partition(":")
    try:
        folder = getattr(importlib.import_module(module), function)(settings)
    except (ImportError, AttributeError, ValueError) as error:
        raise Fatal(
            f"stack.base_model '{name}' is neither a folder nor module:function ({error}); "
            "set STEPSTREAM_STACK_BASE_MODEL"
        ) from error
    assert isinstance(folder, Path)
    return folder


if __name__ == "__main__":
    run("base-model", main)
