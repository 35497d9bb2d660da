"""Run a plain training loop as a side of the bench: `plain.py FOLDER DEVICE THREADS BUCKETS`.

A first version of a trainer: sequences padded on the right, all logits, a clipped objective, AdamW. With several
buckets, sequences of similar length share a forward pass.
"""

import sys
from pathlib import Path

import numpy as np
import ragged
import torch
from transformers import AutoModelForCausalLM
from turns import Turns


def main(folder: Path, device: str, threads: str, buckets: str) -> None:
    """Train one gradient step on the whole batch at each turn."""
    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0, fused=True)
    rows = sorted(ragged.read(folder), key=lambda row: row.ids.size)
    parts = [padded([rows[i] for i in part], device) for part in np.array_split(np.arange(len(rows)), int(buckets))]
    trained = sum(int(mask.sum()) for _, mask, _ in parts)
    turns = Turns(device)
    while turns.wait():
        turns.begin()
        for ids, mask, advantage in parts:
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                logits = model(ids[:, :-1], use_cache=False).logits
            logprobs = logits.float().log_softmax(-1).gather(2, ids[:, 1:, None])[:, :, 0]
            ratio = (logprobs - logprobs.detach()).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
            (-(gain * mask[:, 1:]).sum() / trained).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        turns.end()


def padded(rows: list[ragged.Row], device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids and training mask, both [rows, longest], and advantages, [rows, 1]."""
    longest = max(row.ids.size for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest)
    for number, row in enumerate(rows):
        ids[number, : row.ids.size] = torch.from_numpy(row.ids)
        mask[number, : row.ids.size] = torch.from_numpy(row.trained)
    advantage = torch.tensor([[row.reward - 0.5] for row in rows])
    return ids.to(device), mask.to(device), advantage.to(device)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
