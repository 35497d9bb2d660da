"""Choose the examples whose text is most similar to a question: cosine of TF-IDF vectors. Pure.

Terms are words and the beginnings of longer words, so that inflected words match in part. Weights are those of
scikit-learn's `TfidfVectorizer` with sublinear term frequency and smoothed document frequency.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

_WORD = re.compile(r"\w+")
_MAX_CHARACTERS = 4000
"""Beginning of a text that is compared: it bounds the time of a choice."""
_STEM = 5
"""Letters of a longer word's beginning."""


class ExampleIndex:
    """Inverted index of the texts of examples."""

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [terms(text) for text in texts]
        documents = Counter(term for count in counts for term in count)
        self._n = len(texts)
        self._idf = {term: math.log((1 + self._n) / (1 + n)) + 1 for term, n in documents.items()}
        self._postings: dict[str, list[tuple[int, float]]] = {}
        for i, count in enumerate(counts):
            weights = {term: (1 + math.log(n)) * self._idf[term] for term, n in count.items()}
            length = math.sqrt(math.fsum(weight * weight for weight in weights.values()))
            for term, weight in weights.items():
                self._postings.setdefault(term, []).append((i, weight / length))

    def nearest(self, question: str, k: int) -> list[int]:
        """Return the indices of the `k` most similar texts, the most similar last; ties: the earlier text first.

        The most similar one is last so that it precedes the question.
        """
        scores = [0.0] * self._n
        for term, n in terms(question).items():
            for i, weight in self._postings.get(term, ()):
                scores[i] += weight * (1 + math.log(n)) * self._idf[term]
        best = sorted(range(self._n), key=lambda i: (-round(scores[i], 9), i))
        return best[:k][::-1]


@lru_cache(maxsize=64)
def index_of(texts: tuple[str, ...]) -> ExampleIndex:
    """Return the index of texts; those of the versions that serve now stay in memory."""
    return ExampleIndex(texts)


def terms(text: str) -> Counter[str]:
    """Return the terms of a text with their counts."""
    words = _WORD.findall(text[:_MAX_CHARACTERS].casefold())
    return Counter([*words, *(f"{word[:_STEM]}*" for word in words if len(word) > _STEM)])
