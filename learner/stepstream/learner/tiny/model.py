"""The tiny model's shape: about 250 thousand parameters, with heads that vLLM's CPU attention accepts."""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MAX_LENGTH = 512
_HEADS, _HEAD_DIM, _LAYERS = 3, 32, 2  # vLLM on CPU dies at the first request with a head_dim of 24


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A freshly initialised model in float32; the same weights for the same seed."""
    hidden = _HEADS * _HEAD_DIM
    torch.manual_seed(seed)
    model: LlamaForCausalLM = AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=_LAYERS,
            num_attention_heads=_HEADS,
            num_key_value_heads=_HEADS,
            max_position_embeddings=MAX_LENGTH,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
            initializer_range=hidden**-0.5,  # at the usual 0.02 a model this narrow learns to copy four times later
        ),
        attn_implementation="sdpa",  # eager attention is not bit-exact from process to process
        dtype=torch.float32,
    )
    return model
