"""Create the base model of the fleet: a tiny policy that reads the offered tools and follows examples."""

import hashlib
import logging
from contextlib import suppress
from pathlib import Path

from stepstream.config import Settings
from stepstream.demo.control import world

log = logging.getLogger(__name__)

STEPS = 300
SEED = 0
_OLD_START = "{{- bos_token -}}\n"
_OFFERED = """\
{%- if tools -%}
{{- '#' -}}
{%- for tool in tools -%}
{{- tool.function.name + (',' if not loop.last else '') -}}
{%- endfor -%}
{{- '\\n' -}}
{%- endif -%}
"""
"""Writes the offered tools as the demonstrations do in their first message."""


def prepare(settings: Settings) -> Path:
    """Return the folder of the base model; create it if missing, which takes half a minute of one core."""
    from stepstream.learner.tiny.warm_start import WarmStart, warm_start

    config = WarmStart(steps=STEPS, seed=SEED, threads=settings.learner.threads)
    recipe = f"{Path(world.__file__).read_text(encoding='utf-8')} {_OFFERED} {config}"
    folder = settings.paths.data / "models" / f"desk-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if not folder.exists():
        log.info("warm-starting a base model in %s", folder)
        scratch = folder.with_name(f"{folder.name}.new")
        with suppress(FileExistsError):  # another process is creating the same model
            warm_start(scratch, world.demonstrations(config.seed), config)
            write_template(scratch)
            scratch.rename(folder)
    return folder


def write_template(folder: Path) -> None:
    """Let the chat template of a tiny model begin with the names of the offered tools."""
    file = folder / "chat_template.jinja"
    template = file.read_text(encoding="utf-8")
    assert template.startswith(_OLD_START), template
    file.write_text(template.replace(_OLD_START, _OLD_START + _OFFERED, 1), encoding="utf-8")
