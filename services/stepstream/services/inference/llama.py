"""Compute Llama's forward pass over a static key-value cache, for checkpoints in Hugging Face format.

The number of operations limits a tiny model's decoding loop, so this is several times faster than a general
implementation. Shapes: N rows (sequences), L new tokens a row, H query heads, G
key-value heads, D head size, C model width, T cache length, V vocabulary.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from stepstream.learner.data.end_tokens import read_end_tokens
from stepstream.services.inference.engine import CheckpointRefusedError
from stepstream.services.inference.weight_files import check_finite, read_weights


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The values of config.json that the forward pass needs."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    rope_theta: float
    norm_epsilon: float
    max_length: int
    tied: bool
    end_tokens: frozenset[int]

    @classmethod
    def read(cls, folder: Path) -> "LlamaShape":
        """Read `folder`/config.json.

        Raises:
            CheckpointRefusedError: the file is missing, malformed, or not of Llama's architecture.
        """
        try:
            config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
            if "LlamaForCausalLM" not in config["architectures"]:
                raise CheckpointRefusedError(
                    f"{folder}: the torch engine runs LlamaForCausalLM only, not {config['architectures']}; "
                    "set inference.engine to vllm"
                )
            if config.get("attention_bias") or config.get("mlp_bias"):
                raise CheckpointRefusedError(
                    f"{folder}: the torch engine supports no biases in layers; set inference.engine to vllm"
                )
            rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10_000.0)}
            if rope.get("rope_type", "default") != "default":
                raise CheckpointRefusedError(
                    f"{folder}: the torch engine does not support rope_type '{rope['rope_type']}'; "
                    "set inference.engine to vllm"
                )
            heads = config["num_attention_heads"]
            return cls(
                vocabulary=config["vocab_size"],
                width=config["hidden_size"],
                layers=config["num_hidden_layers"],
                heads=heads,
                kv_heads=config.get("num_key_value_heads", heads),
                head_size=config.get("head_dim") or config["hidden_size"] // heads,
                rope_theta=rope["rope_theta"],
                norm_epsilon=config["rms_norm_eps"],
                max_length=config["max_position_embeddings"],
                tied=config.get("tie_word_embeddings", False),
                end_tokens=read_end_tokens(folder),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointRefusedError(
                f"{folder}/config.json cannot be read: {type(error).__name__} {error}"
            ) from error


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor
    qkv: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class LlamaWeights:
    """The weights of one checkpoint in float32; projections applied together are concatenated."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        """Read `folder` to a torch device.

        Raises:
            CheckpointRefusedError: a file is missing or malformed.
        """
        self.shape = LlamaShape.read(folder)
        entries = read_weights(folder)
        check_finite(folder, entries)
        self.entries = {name: entry for name, entry in entries.items() if name != "score.weight"}
        """Tensors that every version of the model has: all but the value head."""
        try:
            tensors: dict[str, Tensor] = {}
            for file in sorted({entry.file for entry in entries.values()}):
                tensors |= load_file(file)
            tensors = {name: tensor.to(device, torch.float32) for name, tensor in tensors.items()}
            # Clone, because a loaded tensor may be a view of the mapped file.
            self.embedding = tensors["model.embed_tokens.weight"].clone()
            self.head = self.embedding if self.shape.tied else tensors["lm_head.weight"].clone()
            self.norm = tensors["model.norm.weight"].clone()
            self.value_head = tensors["score.weight"].clone() if "score.weight" in tensors else None
            """Value head of a process reward model, [1, C]; None: the model has none."""
            self.layers = [_layer(tensors, f"model.layers.{index}.") for index in range(self.shape.layers)]
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            raise CheckpointRefusedError(f"{folder}: weights cannot be read: {type(error).__name__} {error}") from error


def _layer(tensors: dict[str, Tensor], prefix: str) -> _Layer:
    def concatenated(*names: str) -> Tensor:
        return torch.cat([tensors[f"{prefix}{name}.weight"] for name in names])

    return _Layer(
        attention_norm=concatenated("input_layernorm"),
        qkv=concatenated("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        output=concatenated("self_attn.o_proj"),
        mlp_norm=concatenated("post_attention_layernorm"),
        gate_up=concatenated("mlp.gate_proj", "mlp.up_proj"),
        down=concatenated("mlp.down_proj"),
    )


class LlamaCache:
    """Keys and values of `rows` sequences of up to `length` tokens: two tensors [layers, N, G, T, D]."""

    def __init__(self, shape: LlamaShape, rows: int, length: int, device: torch.device) -> None:
        size = (shape.layers, rows, shape.kv_heads, length, shape.head_size)
        self.keys, self.values = torch.zeros(size, device=device), torch.zeros(size, device=device)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of a row over another row."""
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]


class Llama:
    """The forward pass over rows 0..N-1 of a cache; `weights` may be replaced between calls."""

    def __init__(self, weights: LlamaWeights, rows: int, length: int) -> None:
        self.shape = weights.shape
        self.weights = weights
        self.length = min(length, self.shape.max_length)
        self.device = weights.embedding.device
        self.cache = LlamaCache(self.shape, rows, self.length, self.device)
        half = torch.arange(0, self.shape.head_size, 2).float() / self.shape.head_size
        angles = torch.arange(self.length).float()[:, None] / self.shape.rope_theta**half
        self._cos = torch.cat([angles.cos(), angles.cos()], -1).to(self.device)
        self._sin = torch.cat([-angles.sin(), angles.sin()], -1).to(self.device)

    def prefill(self, first_row: int, tokens: Tensor, last: Tensor) -> Tensor:
        """Compute whole prompts into rows from `first_row`; return logits [N, V] after each row's token `last`.

        `tokens` is [N, L], padded on the right with anything; `last` is [N].
        """
        return linear(self.read(first_row, tokens, last), self.weights.head)

    def read(self, first_row: int, tokens: Tensor, last: Tensor) -> Tensor:
        """Compute prompts like `prefill`; return the heads' input, normed states [N, C] after each row's `last`."""
        rows, length = tokens.shape
        window = slice(first_row, first_row + rows)
        hidden = self.weights.embedding[tokens]
        cos, sin = self._cos[:length], self._sin[:length]
        for index, layer in enumerate(self.weights.layers):
            query, key, value = self._project(layer, hidden, cos, sin)
            self.cache.keys[index, window, :, :length] = key
            self.cache.values[index, window, :, :length] = value
            mixed = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=self._grouped)
            hidden = self._mix(layer, hidden, mixed)
        return self._normed(hidden[torch.arange(rows, device=self.device), last])

    def decode(self, tokens: Tensor, positions: Tensor, longest: int) -> Tensor:
        """Compute one token for each of rows 0..N-1, at its own position (< longest); return logits [N, V]."""
        rows = torch.arange(len(tokens), device=self.device)
        hidden = self.weights.embedding[tokens][:, None]
        cos, sin = self._cos[positions][:, None, None], self._sin[positions][:, None, None]
        visible = (torch.arange(longest, device=self.device) <= positions[:, None])[:, None, None]
        for index, layer in enumerate(self.weights.layers):
            query, key, value = self._project(layer, hidden, cos, sin)
            keys, values = self.cache.keys[index], self.cache.values[index]
            keys[rows, :, positions] = key[:, :, 0]
            values[rows, :, positions] = value[:, :, 0]
            mixed = scaled_dot_product_attention(
                query,
                keys[: len(tokens), :, :longest],
                values[: len(tokens), :, :longest],
                attn_mask=visible,
                enable_gqa=self._grouped,
            )
            hidden = self._mix(layer, hidden, mixed)
        return linear(self._normed(hidden[:, 0]), self.weights.head)

    @property
    def _grouped(self) -> bool:
        return self.shape.heads != self.shape.kv_heads

    def _project(self, layer: _Layer, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries [N, H, L, D] and keys [N, G, L, D], and values [N, G, L, D]."""
        shape = self.shape
        normed = rms_norm(hidden, (shape.width,), layer.attention_norm, shape.norm_epsilon)
        heads = linear(normed, layer.qkv).view(*hidden.shape[:2], -1, shape.head_size).transpose(1, 2)
        rotated = heads[:, : shape.heads + shape.kv_heads]
        rotated = rotated * cos + rotated.roll(shape.head_size // 2, -1) * sin
        return rotated[:, : shape.heads], rotated[:, shape.heads :], heads[:, shape.heads + shape.kv_heads :]

    def _mix(self, layer: _Layer, hidden: Tensor, mixed: Tensor) -> Tensor:
        hidden = hidden + linear(mixed.transpose(1, 2).flatten(2), layer.output)
        normed = rms_norm(hidden, (self.shape.width,), layer.mlp_norm, self.shape.norm_epsilon)
        gate, up = linear(normed, layer.gate_up).chunk(2, -1)
        return hidden + linear(silu(gate) * up, layer.down)

    def _normed(self, hidden: Tensor) -> Tensor:
        """Return the heads' input, [N, C]."""
        return rms_norm(hidden, (self.shape.width,), self.weights.norm, self.shape.norm_epsilon)
