"""`stepstream plan-memory`: estimate the memory of training a model, and name the settings that make it fit."""

import json
from pathlib import Path

import click

from stepstream.config import LearnerSettings, load

_GB = 10**9
_CARDS = {"80 GB": 80 * _GB, "141 GB": 141 * _GB}


@click.command("plan-memory")
@click.argument("model")
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True, help="Ranks, each with one GPU.")
@click.option("--lora-rank", type=click.IntRange(0), help="Rank of adapters; default: learner.lora_rank.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan_memory(model: str, gpus: int, lora_rank: int | None, as_json: bool) -> None:
    """Estimate the memory of training MODEL on each GPU, by part, under the effective settings.

    MODEL is a folder in Hugging Face's format, of which only config.json is read, or a name on the hub.
    """
    from stepstream.learner.advantages.from_config import rule_of
    from stepstream.learner.model.memory_plan import advice
    from stepstream.learner.model.memory_plan import plan_memory as plan_of
    from stepstream.learner.model.model_shape import shape_of
    from stepstream.learner.model.pretrained import CannotTrain
    from stepstream.learner.model.reference import needs_reference

    config = _on_gpu(load().learner, lora_rank)
    parts = {
        "has_reference": needs_reference(config) and not config.lora_rank,
        "has_critic": config.objective == "policy_gradient" and "values" in rule_of(config).needs,
    }
    try:
        shape = shape_of(_configuration_folder(model), config)
    except CannotTrain as error:
        raise click.ClickException(str(error)) from None
    plan = plan_of(shape, config, gpus, **parts)
    changes = {card: advice(shape, config, gpus, size, **parts) for card, size in _CARDS.items()}
    if as_json:
        facts = {"weights": shape.weights, "trained": shape.trained, "gpus": gpus, "gpu": dict(plan.gpu)}
        facts |= {"gpu_total": plan.gpu_total, "host": dict(plan.host), "host_total": plan.host_total}
        click.echo(json.dumps(facts | {"changes": changes}))
        return
    counts = f"{shape.weights / 1e9:.2f} billion weights, {shape.trained / 1e9:.3f} trained"
    click.echo(f"{counts}; GB on each of {gpus} GPUs:")
    for part, size in (*plan.gpu.items(), ("total", plan.gpu_total)):
        if size:
            click.echo(f"{size / _GB:9.2f}  {part}")
    for part, size in plan.host.items():
        if size:
            click.echo(f"{size / _GB:9.2f}  host memory for each GPU: {part}")
    for card, needed in changes.items():
        click.echo(f"{card}: " + ("fits" if not needed else "set " + ", ".join(needed)))


def _on_gpu(config: LearnerSettings, lora_rank: int | None) -> LearnerSettings:
    """Return the settings for GPUs: an estimate for a CPU would answer no question."""
    update: dict[str, object] = {"device": "cuda"}
    if config.device == "cpu":
        update["precision"] = "bfloat16"
    if lora_rank is not None:
        update["lora_rank"] = lora_rank
    return config.model_copy(update=update)


def _configuration_folder(model: str) -> Path:
    """Return the folder of a model's configuration; fetch it from the hub, without weights, if it is a name."""
    if Path(model).is_dir():
        from stepstream.versions.layout import weights_folder

        return weights_folder(Path(model))
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(model, allow_patterns=["config.json"]))
    except (OSError, ValueError) as error:  # base classes of the hub client's errors
        raise click.ClickException(
            f"{model} is not a folder, and its config.json could not be fetched from the Hugging Face hub "
            f"({type(error).__name__}: {str(error).splitlines()[0]})"
        ) from None
