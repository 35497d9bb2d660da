"""Check that rows from several writers give the bytes that safetensors writes from whole tensors."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stepstream.learner.model import row_files
from stepstream.learner.model.row_files import RowFile, Rows, split_files

TENSORS = {
    "b.weight": torch.randn(7, 3),
    "a.ünicode": torch.randn(5, 2, 2).bfloat16(),
    "step": torch.tensor(3.0),
    "count": torch.tensor([1, 2, 3]),
    "flags": torch.tensor([True, False, True, True, False]),
    "half": torch.randn(4).half(),
    "small": torch.arange(9, dtype=torch.int8),
}
SPLIT = 3


def rows_of(name: str, writer: int) -> Rows:
    """Return the rows of one of two writers: the first has all of a scalar."""
    tensor = TENSORS[name]
    if tensor.dim() == 0:
        return Rows((), tensor.dtype, 0, (lambda: tensor) if writer == 0 else None)
    part = tensor[:SPLIT] if writer == 0 else tensor[SPLIT:]
    return Rows(tuple(tensor.shape), tensor.dtype, 0 if writer == 0 else SPLIT, lambda: part)


@pytest.mark.parametrize("marked", [True, False])
def test_two_writers_give_the_bytes_of_one(tmp_path: Path, marked: bool) -> None:
    save_file(TENSORS, tmp_path / "whole", metadata={"format": "pt"} if marked else None)
    files = [RowFile("x/rows", {name: rows_of(name, writer) for name in TENSORS}, marked=marked) for writer in (0, 1)]
    files[0].create(tmp_path)
    for file in reversed(files):
        file.write(tmp_path)
    assert (tmp_path / "x/rows").read_bytes() == (tmp_path / "whole").read_bytes()


def test_values_are_converted_to_the_type_of_the_file(tmp_path: Path) -> None:
    value = torch.randn(4, 4)
    save_file({"w": value.bfloat16()}, tmp_path / "whole")
    file = RowFile("rows", {"w": Rows((4, 4), torch.bfloat16, 0, lambda: value.T)})
    file.create(tmp_path)
    file.write(tmp_path)
    save_file({"w": value.T.bfloat16().contiguous()}, tmp_path / "whole")
    assert (tmp_path / "rows").read_bytes() == (tmp_path / "whole").read_bytes()


def test_files_stay_below_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "FILE_BYTES", 40)
    files = split_files("weights", {name: Rows((4,), torch.float32, 0, None) for name in "abcde"}, "m{suffix}.s")
    assert [file.name for file in files] == [f"weights/m-0000{number}-of-00003.s" for number in (1, 2, 3)]
    assert split_files("weights", {}, "m{suffix}.s") == []
