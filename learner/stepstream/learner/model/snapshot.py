"""Copy a policy's state between two updates, and write it as the files of a version, on one or several ranks.

Each rank copies the rows that it holds to host memory, from which they are later written into the common files
(`row_files`), while training goes on. No rank holds a whole model.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepstream.core.process import Fatal
from stepstream.learner.model import lora
from stepstream.learner.model.critic import CRITIC
from stepstream.learner.model.distributed import is_first_copy, local_rows, local_shard
from stepstream.learner.model.published_form import PublishedForm, weight_files
from stepstream.learner.model.rank_groups import WRITERS
from stepstream.learner.model.row_files import RowFile, Rows, split_files
from stepstream.learner.model.tensor_files import OPTIMIZER
from stepstream.versions import layout
from stepstream.versions.layout import indexed_files

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a policy between two updates: of each tensor the rows that this rank holds."""

    form: PublishedForm
    weights: Mapping[str, Rows]
    """By the names in the files, without those of adapters."""
    optimizer: Mapping[str, Rows]
    is_merged: bool
    """True if the weights need no adapters added."""
    adapters: Mapping[str, Tensor] = field(default_factory=dict)
    """Whole weights of the adapters, by the names of the model's parameters; empty: all weights are trained."""
    adapter: Mapping[str, Any] | None = None
    """Configuration of the adapters; None: all weights are trained."""
    base: Path | None = None
    """Folder of the model that the adapters belong to."""
    critic: Mapping[str, Tensor] = field(default_factory=dict)
    """Value head and its optimizer state; empty: no critic."""

    def write(self, folder: Path, *, adapters_only: bool = False) -> None:
        """Write `weights/` and `training/` into an existing folder; the same values give the same bytes.

        Blocks until the files of all ranks are durable. For rank 0; the other ranks call `help_write`. After a fault it
        may be called again, with another folder, until `end_write`.

        Args:
            folder: folder that all ranks can write to.
            adapters_only: leave out the weights that the adapters belong to.

        Raises:
            OSError: a rank cannot write a file.
            Fatal: another fault of another rank.
        """
        (folder / layout.WEIGHTS).mkdir()
        (folder / layout.TRAINING).mkdir()
        files = self._files(adapters_only)
        for file in files:
            file.create(folder)
        WRITERS.broadcast((folder, adapters_only))
        self._write_rows(folder, files)
        if not adapters_only:
            self.form.write_config(folder / layout.WEIGHTS)
        if self.adapter is not None:
            self._write_adapter(folder, self.adapter, adapters_only)

    def help_write(self) -> None:
        """Write this rank's rows into the files of each of rank 0's calls of `write`; for the other ranks.

        Blocks until rank 0 calls `end_write`. Rank 0 raises the faults of all ranks.

        Raises:
            Fatal: rank 0 is gone.
        """
        while (command := WRITERS.receive()) is not None:
            folder, adapters_only = command
            try:
                self._write_rows(folder, self._files(adapters_only))
            except (OSError, Fatal) as fault:
                log.warning("an attempt to write a version failed: %s", fault)

    def end_write(self) -> None:
        """Let the other ranks return from `help_write`: the version is complete. For rank 0."""
        WRITERS.broadcast(None)

    @torch.no_grad()
    def _write_rows(self, folder: Path, files: list[RowFile]) -> None:
        fault: Exception | None = None
        try:
            for file in files:
                file.write(folder)
        except Exception as error:  # the other ranks wait for the outcome
            fault = error
        faults = WRITERS.gather(None if fault is None else (repr(fault), isinstance(fault, OSError)))
        if fault is not None:
            raise fault
        for rank, other in enumerate(faults):
            if other is not None:
                text, is_refused = other
                raise (OSError if is_refused else Fatal)(f"rank {rank} cannot write its rows of a version: {text}")

    def _files(self, adapters_only: bool) -> list[RowFile]:
        files = split_files(layout.TRAINING, self.optimizer, OPTIMIZER)
        if self.critic:
            files.append(RowFile(f"{layout.TRAINING}/{CRITIC}", _of_rank_zero(self.critic)))
        if self.adapter is not None:
            folder = layout.WEIGHTS if adapters_only else layout.TRAINING
            adapters = _of_rank_zero(lora.adapters_in(self.adapters))
            files.append(RowFile(f"{folder}/{lora.ADAPTER}/{lora.WEIGHTS}", adapters))
        if not adapters_only:
            files += weight_files(self._merged())
        return files

    def _merged(self) -> Mapping[str, Rows]:
        """Return the weights with the adapters merged."""
        if self.is_merged or self.adapter is None:
            return self.weights
        merged = {}
        for name, rows in self.weights.items():
            change = lora.change_of(name, self.adapters, self.adapter)
            read = None if rows.read is None else partial(_sum_of, rows.read, rows.first, change)
            merged[name] = Rows(rows.shape, rows.dtype, rows.first, read)
        return merged

    def _write_adapter(self, folder: Path, adapter: Mapping[str, Any], adapters_only: bool) -> None:
        """Write the adapters' configuration, and link the model that they belong to."""
        own = folder / (layout.WEIGHTS if adapters_only else layout.TRAINING) / lora.ADAPTER
        (own / lora.CONFIG).write_text(json.dumps(adapter, indent=2, sort_keys=True) + "\n")
        if adapters_only or self.base is None:
            return
        base = folder / layout.TRAINING / lora.BASE
        base.mkdir()
        for file in ("config.json", *indexed_files(self.base)):
            link(self.base / file, base / file)
        (base / layout.INDEX).write_bytes(layout.index_of(base.glob("*.safetensors")))


def rows_of(tensor: Tensor, dtype: torch.dtype, *, is_frozen: bool = False) -> Rows:
    """Copy the rows of a tensor that this rank holds to host memory.

    Args:
        tensor: tensor, possibly sharded.
        dtype: its type in the file; of numbers that are no floating-point numbers their own is kept.
        is_frozen: True if no update changes the tensor: then it is read when it is written, without a copy.
    """
    dtype = dtype if tensor.is_floating_point() else tensor.dtype
    held = local_rows(tensor)
    first = 0 if held is None else held[0]
    if not is_first_copy(tensor):
        return Rows(tuple(tensor.shape), dtype, first, None)
    shard = local_shard(tensor).detach()
    value = shard if is_frozen else shard.to("cpu", copy=True)
    return Rows(tuple(tensor.shape), dtype, first, lambda: value)


def link(source: str | Path, target: str | Path) -> None:
    """Create a hard link to a file that never changes; a copy across file systems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _of_rank_zero(tensors: Mapping[str, Tensor]) -> dict[str, Rows]:
    """Return whole tensors, which rank 0 writes."""
    return {name: rows_of(value, value.dtype, is_frozen=True) for name, value in tensors.items()}


def _sum_of(read: Callable[[], Tensor], first: int, change: Callable[[], Tensor] | None) -> Tensor:
    rows = read().cpu()
    return rows if change is None else rows + change()[first : first + rows.shape[0]]
