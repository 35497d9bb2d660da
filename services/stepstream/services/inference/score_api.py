"""Read requests and write replies of `POST /v1/score`: values of contexts by a process reward model.

    {"model": "prm", "prompts": [{"messages": [...]} or {"token_ids": [...]}, ...], "head": "tokens",
     "positive": "yes", "negative": "no"}
    → {"object": "scores", "model": "prm", "version": 3, "scores": [0.93, ...]}

With `head = "tokens"` a score is the probability of the first token of `positive` against that of `negative` as the
assistant's next token: σ(logit₊ - logit₋). With `head = "scalar"` it is σ of the output of the model's own value head,
`score.weight`, on the state after the last token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from stepstream.services.inference.chat_messages import read_messages
from stepstream.services.inference.chat_tokenizer import ChatTokenizer, Message
from stepstream.services.inference.request_fields import RequestError, read_model, read_object

_MAX_PROMPTS = 256


class Prompt(NamedTuple):
    """A context: a conversation or its token ids; the other field is empty."""

    messages: list[Message]
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """The validated fields of a request."""

    model: str
    prompts: Sequence[Prompt]
    words: tuple[str, str] | None
    """The positive and the negative word; None: the model's own value head scores."""

    def prompt_ids(self, tokenizer: ChatTokenizer) -> list[list[int]]:
        """Return the token ids of each prompt; for the model's own head a conversation ends with its last message.

        Raises:
            TemplateError: a conversation cannot be rendered.
        """
        by_words = self.words is not None
        return [
            ids or tokenizer.prompt_ids(messages, [], add_generation_prompt=by_words) for messages, ids in self.prompts
        ]

    def tokens(self, tokenizer: ChatTokenizer) -> tuple[int, int] | None:
        """Return the first tokens of the two words.

        Raises:
            RequestError: 400, both begin with the same token.
            TemplateError: a word has no token.
        """
        if self.words is None:
            return None
        positive, negative = map(tokenizer.first_token, self.words)
        if positive == negative:
            raise RequestError(400, "'positive' and 'negative' begin with the same token", param="positive")
        return positive, negative


def read_score_request(body: bytes) -> ScoreRequest:
    """Parse and validate a request.

    Raises:
        RequestError: 400, names the invalid field.
    """
    fields = read_object(body)
    prompts = fields.get("prompts")
    if not isinstance(prompts, list) or not 0 < len(prompts) <= _MAX_PROMPTS:
        raise RequestError(400, f"'prompts' must be a list of 1 to {_MAX_PROMPTS}", param="prompts")
    head = fields.get("head", "tokens")
    if head not in ("tokens", "scalar"):
        raise RequestError(400, "'head' must be tokens or scalar", param="head")
    return ScoreRequest(
        model=read_model(fields.get("model")),
        prompts=[_prompt(index, prompt) for index, prompt in enumerate(prompts)],
        words=(_word(fields, "positive", "yes"), _word(fields, "negative", "no")) if head == "tokens" else None,
    )


def score_reply(model: str, version: int, scores: Sequence[float]) -> bytes:
    """Return the body of the reply."""
    return orjson.dumps({"object": "scores", "model": model, "version": version, "scores": list(scores)})


def _prompt(index: int, prompt: Any) -> Prompt:
    param = f"prompts[{index}]"
    if isinstance(prompt, dict) and set(prompt) == {"messages"}:
        return Prompt(read_messages(prompt["messages"]), [])
    if isinstance(prompt, dict) and set(prompt) == {"token_ids"}:
        ids = prompt["token_ids"]
        if isinstance(ids, list) and ids and all(type(one) is int for one in ids):
            return Prompt([], ids)
    raise RequestError(400, f"{param}: must have either 'messages', or 'token_ids' as a list of integers", param=param)


def _word(fields: dict[str, Any], name: str, default: str) -> str:
    word = fields.get(name, default)
    if not isinstance(word, str) or not word:
        raise RequestError(400, f"'{name}' must be a word", param=name)
    return word
