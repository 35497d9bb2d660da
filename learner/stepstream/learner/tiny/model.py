"""Build the tiny model and its tokenizer.

The model has about 250 thousand parameters and a head size that vLLM's CPU attention accepts. The tokenizer has one
token per printable ASCII character. Its chat template is append-only: a longer conversation renders to the text of the
shorter one plus more. So the next prompt consists of the tokens of the last prompt, the response and the new messages.
"""

import string

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MAX_LENGTH = 512
_HEADS, _HEAD_DIM, _LAYERS = 3, 32, 2  # vLLM on CPU crashes at the first request with a head_dim of 24


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Return a new model in float32; the same seed gives the same weights."""
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
            initializer_range=hidden**-0.5,  # with the usual 0.02 it takes four times longer to learn to copy
        ),
        attn_implementation="sdpa",  # eager attention is not bit-exact from process to process
        dtype=torch.float32,
    )
    return model


PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
_SPECIAL = (PAD, BOS, EOS, UNKNOWN)
_CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"

CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{%- if message.tool_calls -%}
{%- for call in message.tool_calls -%}
{{- call.function.name + '(' + call.function.arguments.input + ')' -}}
{%- endfor -%}
{%- else -%}
{{- message.content or '' -}}
{%- endif -%}
{{- eos_token -}}
{%- elif message.role == 'tool' -%}
{{- '>' + message.content + '\\n' -}}
{%- elif message.role == 'system' -%}
{{- '#' + message.content + '\\n' -}}
{%- else -%}
{{- message.content + '\\n' -}}
{%- endif -%}
{%- endfor -%}
"""


def build_tokenizer(max_length: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer with its chat template; `max_length` is the model's context in tokens."""
    vocabulary = {token: index for index, token in enumerate([*_SPECIAL, *_CHARACTERS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
