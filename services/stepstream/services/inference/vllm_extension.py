"""Code that runs inside vLLM's worker processes (`--worker-extension-cls`): exchanging the weights."""

from typing import Any


class SwapExtension:
    """Mixed into vLLM's worker class, which provides these two attributes."""

    model_runner: Any
    reload_weights: Any

    def stepstream_swap(self, folder: str) -> None:
        """Load the checkpoint in `folder` over the served weights."""
        self.reload_weights(weights_path=folder)
        model = self.model_runner.get_model()
        head = getattr(model, "lm_head", None)
        if head is not None and getattr(model.config, "tie_word_embeddings", False):
            # On CPU vLLM 0.32 leaves a tied head's packed matrix at the old weights.
            head.quant_method.process_weights_after_loading(head)
