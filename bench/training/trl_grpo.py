"""Run TRL's GRPOTrainer as a side of the bench: `trl_grpo.py FOLDER DEVICE THREADS SEQUENCES`, in TRL's environment.

Only training is timed: generations and scores are given, padded as TRL pads them (prompts on the left, completions on
the right, observations masked as its tools' are). It uses its cheapest settings: no reference model, one iteration, no
gradient checkpointing.
"""

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0") if sys.argv[2] == "cuda" else ""

import ragged
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from turns import Turns

ENDLESS = 10**6


def generation(rows: list[ragged.Row], device: str) -> dict[str, torch.Tensor]:
    """Return the result of generating and scoring these rows."""
    prompt = max(row.prompt for row in rows)
    completion = max(row.ids.size - row.prompt for row in rows)
    shapes = {"prompt_ids": prompt, "prompt_mask": prompt}
    shapes |= {"completion_ids": completion, "completion_mask": completion, "tool_mask": completion}
    tensors = {name: torch.zeros(len(rows), length, dtype=torch.long) for name, length in shapes.items()}
    tensors["tool_mask"].fill_(1)
    for number, row in enumerate(rows):
        ids, length = torch.from_numpy(row.ids), row.ids.size - row.prompt
        tensors["prompt_ids"][number, prompt - row.prompt :] = ids[: row.prompt]
        tensors["prompt_mask"][number, prompt - row.prompt :] = 1
        tensors["completion_ids"][number, :length] = ids[row.prompt :]
        tensors["completion_mask"][number, :length] = 1
        tensors["tool_mask"][number, :length] = torch.from_numpy(row.trained[row.prompt :]).long()
    tensors["advantages"] = torch.tensor([row.reward - 0.5 for row in rows])
    tensors["num_items_in_batch"] = torch.tensor(sum(int(row.trained.sum()) for row in rows))
    return {name: value.to(device) for name, value in tensors.items()}


class ReplayTrainer(GRPOTrainer):
    """GRPO trainer with given generations."""

    replayed: dict[str, torch.Tensor]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
        return dict(self.replayed)


class Clock(TrainerCallback):
    """Times optimizer steps with their gradient accumulation."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.turns.wait()

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.turns.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.turns.end()
        control.should_training_stop = not self.turns.wait()


def main(folder: Path, device: str, threads: str, sequences: str) -> None:
    """Train one gradient step on the whole batch at each turn."""
    torch.set_num_threads(int(threads))
    logging.disable(logging.WARNING)
    rows = ragged.read(folder)
    size = rows[-1].group and len(rows) // (rows[-1].group + 1)
    with tempfile.TemporaryDirectory() as output:
        config = GRPOConfig(
            output_dir=output,
            use_cpu=device == "cpu",
            bf16=device == "cuda",
            per_device_train_batch_size=int(sequences),
            gradient_accumulation_steps=len(rows) // int(sequences),
            num_generations=size,
            num_iterations=1,
            beta=0.0,
            learning_rate=1e-5,
            max_grad_norm=1.0,
            max_steps=ENDLESS,
            gradient_checkpointing=False,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = ReplayTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa"),
            reward_funcs=lambda completions, **more: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": ["q"] * len(rows)}),
            processing_class=AutoTokenizer.from_pretrained(folder),
            callbacks=[Clock(Turns(device))],
        )
        trainer.replayed = generation(rows, device)
        trainer.train()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
