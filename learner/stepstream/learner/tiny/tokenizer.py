"""The tiny model's tokenizer: one token a printable ASCII character, saved in Hugging Face form.

The chat template is append-only: a longer conversation renders to exactly the shorter one's text and something
after it, so a next prompt is always the last prompt's tokens, the response's tokens, and the new messages'.
"""

import string

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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
    """The tokenizer with its chat template; `max_length` in tokens is what the model can hold."""
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
