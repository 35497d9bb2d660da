"""Let vLLM refuse to start with weights that lack a tensor of the model.

vLLM 0.32 leaves linear layers and embeddings out of its own check: it starts, and their weights are what lay in memory.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

_PATCHED = "_stepstream_requires_every_tensor"


def require_every_tensor() -> None:
    """Patch vLLM's loader in this process; a second call has no effect.

    The check concerns the model of a server that Stepstream started, without quantisation. A swap makes the same one.
    """
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    if hasattr(DefaultModelLoader, _PATCHED):
        return
    load_weights = DefaultModelLoader.load_weights

    def load(self: Any, model: Any, model_config: Any) -> None:
        if _is_served(model_config):
            self.track_weights_loading = partial(_track, self.track_weights_loading)
        try:
            load_weights(self, model, model_config)
        finally:
            vars(self).pop("track_weights_loading", None)

    DefaultModelLoader.load_weights = load
    setattr(DefaultModelLoader, _PATCHED, True)


def _is_served(model_config: Any) -> bool:
    """Return False for a draft model of speculative decoding, which shares tensors with the served one."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    ours = config is not None and "stepstream" in (config.additional_config or {})
    return ours and model_config.runner_type != "draft" and model_config.quantization is None


def _track(track: Callable[..., None], model: Any, loaded: set[str] | None, *args: Any, **kwargs: Any) -> None:
    if loaded is not None:
        missing = sorted({name for name, _ in model.named_parameters()} - loaded)
        if missing:
            raise ValueError(f"the weights lack {len(missing)} tensors of the model, as {missing[0]}")
    track(model, loaded, *args, **kwargs)
