"""Swap the weights inside vLLM's worker processes (`--worker-extension-cls`).

A module of its own, because those processes import it."""

from typing import Any


class SwapExtension:
    """A mixin of vLLM's worker class, which provides both attributes."""

    model_runner: Any
    reload_weights: Any

    def stepstream_swap(self, folder: str) -> None:
        """Load the checkpoint in `folder` over the served weights."""
        self.reload_weights(weights_path=folder)
        model = self.model_runner.get_model()
        head = getattr(model, "lm_head", None)
        if head is not None and getattr(model.config, "tie_word_embeddings", False):
            # On CPU vLLM 0.32 keeps the old weights in a tied head's packed matrix.
            head.quant_method.process_weights_after_loading(head)
