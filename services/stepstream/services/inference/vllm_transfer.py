"""Load a version's files into vLLM's workers: the backend `stepstream` of vLLM's weight transfer.

vLLM's worker processes import this module. One update is start, receive, finish: the layers of the model are emptied,
filled from the version's folder as at a start, and their packed forms are made anew. Nothing may run meanwhile.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from stepstream.services.inference.vllm_adapter_fix import multiply_adapters_by_slot
from stepstream.services.inference.vllm_seeds import rewind_seeded_requests


@dataclass
class NoInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing: files need no meeting of sender and receiver."""


@dataclass
class FolderUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One version."""

    folder: str
    """Folder in Hugging Face layout, on a file system that the worker process sees."""


class FolderTransferEngine(WeightTransferEngine):  # type: ignore[misc]
    """Fills the served model from a folder; adapters and the prefix cache are the caller's."""

    init_info_cls = NoInit
    update_info_cls = FolderUpdate
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        if device.type == "cpu":
            if vllm_config.lora_config is not None:
                multiply_adapters_by_slot()
            rewind_seeded_requests()

    def init_transfer_engine(self, init_info: NoInit) -> None:
        """Do nothing."""

    def start_weight_update(self) -> None:
        """Empty the layers, so that each is packed anew when its last tensor has come."""
        self._expected = {name.replace(".base_layer.", ".") for name, _ in self.model.named_parameters()}
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Fill the layers; vLLM's own method synchronises an accelerator, which a CPU build lacks."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FolderUpdate) -> None:
        """Load every tensor of the folder.

        Raises:
            ValueError: the folder lacks tensors of the model; the model is then half loaded.
        """
        self.model_config.model = update_info.folder
        self.model_config.model_weights, self.model_config.revision = "", None
        loader = get_model_loader(self.vllm_config.load_config)
        try:
            loaded = self.model.load_weights(loader.get_all_weights(self.model_config, self.model))
            missing = sorted(self._expected - loaded) if loaded is not None else []
            if missing and self.model_config.quantization is None:
                raise ValueError(f"{update_info.folder} lacks {len(missing)} tensors of the model, as {missing[0]}")
        except BaseException:
            # End the update, so that the next one starts from empty layers, not from half-filled ones.
            with suppress(Exception):
                finalize_layerwise_reload(self.model, self.model_config)
            raise

    def finish_weight_update(self) -> None:
        """Pack what is left, and the head of a model with tied embeddings."""
        finalize_layerwise_reload(self.model, self.model_config)
        head = getattr(self.model, "lm_head", None)
        if head is not None and self.device.type == "cpu" and getattr(self.model.config, "tie_word_embeddings", False):
            # vLLM 0.32 keeps the old weights in a tied head's packed matrix.
            head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        """Do nothing."""
