"""Merge low-rank adapters into the weights of their base: W + (α / r) B A, for engines without adapters."""

import json
import shutil
from pathlib import Path
from typing import Any

from stepstream.versions.layout import header_of, indexed_files

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_UNKNOWN = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "lora_bias")
"""Options of PEFT under which the sum is another one."""


class CannotMerge(Exception):
    """The adapters do not fit the base; the message names the layer."""


def merge_adapters(adapter: Path, base: Path, target: Path) -> None:
    """Write the base's weights with the adapters merged into `target`, in the base's precision.

    The sum is computed in float32; its last bits may differ from the learner's.

    Raises:
        CannotMerge: an adapter has no layer in the base, or is more than two matrices and a common scale.
        OSError: a file cannot be read.
    """
    config = json.loads((adapter / CONFIG).read_bytes())
    values = _Tensors(adapter / WEIGHTS)
    unknown = [name for name in _UNKNOWN if config.get(name)]
    unknown += [name for name in values.entries if not name.endswith((_A, _B)) and name != "__metadata__"]
    if unknown:
        raise CannotMerge(f"adapters with {unknown[0]} cannot be merged: serve them with vLLM")
    modules = {name.removesuffix(_A) for name in values.entries if name.endswith(_A)}
    for file in indexed_files(base):
        shutil.copyfile(base / file, target / file)
        weights = _Tensors(target / file)
        for module in sorted(modules):
            name = f"{module.removeprefix(_PREFIX)}.weight"
            if name not in weights.entries:
                continue
            modules.remove(module)
            change = (values.read(module + _B) @ values.read(module + _A)) * (config["lora_alpha"] / config["r"])
            weights.write(name, weights.read(name) + (change.T if config.get("fan_in_fan_out") else change))
    if modules:
        raise CannotMerge(f"the base has no layer {min(modules).removeprefix(_PREFIX)}: publish full versions instead")


class _Tensors:
    """The tensors of a safetensors file as float32 arrays."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.entries: dict[str, Any] = header_of(file)
        with file.open("rb") as stream:
            self._begin = 8 + int.from_bytes(stream.read(8), "little")

    def read(self, name: str) -> Any:
        import numpy as np

        entry = self.entries[name]
        start, end = entry["data_offsets"]
        with self._file.open("rb") as stream:
            stream.seek(self._begin + start)
            content = stream.read(end - start)
        if entry["dtype"] == "BF16":
            array = (np.frombuffer(content, np.uint16).astype(np.uint32) << 16).view(np.float32)
        elif entry["dtype"] in ("F32", "F16"):
            array = np.frombuffer(content, np.float32 if entry["dtype"] == "F32" else np.float16).astype(np.float32)
        else:
            raise CannotMerge(f"{name} has the type {entry['dtype']}: only F32, F16 and BF16 are merged")
        return array.reshape(entry["shape"])

    def write(self, name: str, value: Any) -> None:
        import numpy as np

        entry = self.entries[name]
        if entry["dtype"] == "BF16":
            bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
            content = (
                ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
            )  # to nearest, ties to even
        else:
            content = np.ascontiguousarray(value, np.float32 if entry["dtype"] == "F32" else np.float16).tobytes()
        with self._file.open("r+b") as stream:
            stream.seek(self._begin + entry["data_offsets"][0])
            stream.write(content)
