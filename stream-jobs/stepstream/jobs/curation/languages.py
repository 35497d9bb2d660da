"""Which language a text is written in, by its script and its most frequent small words. Pure.

Made for one question: is this clearly another language than the policy lists? It knows the languages below and says
None for short texts (under 20 words, or 20 letters of a script without spaces), for mixed ones and for code. Languages
that share a script and are not listed are taken for the nearest listed one or for none: Ukrainian and Bulgarian read
as Russian, Persian and Urdu as Arabic, Marathi as Hindi.
"""

import re
from collections import Counter

_SCRIPTS = (
    ("ja", "\u3040-\u30ff"),
    ("ko", "\uac00-\ud7af\u1100-\u11ff"),
    ("zh", "\u4e00-\u9fff"),
    ("ru", "\u0400-\u04ff"),
    ("el", "\u0370-\u03ff"),
    ("ar", "\u0600-\u06ff"),
    ("he", "\u0590-\u05ff"),
    ("hi", "\u0900-\u097f"),
    ("th", "\u0e00-\u0e7f"),
)
_LATIN = "A-Za-z\u00c0-\u024f"
_LETTERS = re.compile("|".join([f"(?P<latin>[{_LATIN}])", *(f"(?P<{name}>[{span}])" for name, span in _SCRIPTS)]))
_WORDS = re.compile(f"[{_LATIN}]+")
_SMALL_WORDS = {
    language: frozenset(words.split())
    for language, words in {
        "en": "the and of to in is that it for with as was are this be on not you have i we from by or an",
        "de": "der die und das ist nicht ich wir ein eine mit zu den für auf von dem sie es im auch des werden sind",
        "fr": "le la les et des est que une dans pour vous pas sur nous avec ce il elle du qui au par sont je",
        "es": "el los las y que es una para con por del no se lo como más está son pero su al este hay",
        "it": "il gli che di è una per non con del della sono si lo come più questo alla nel anche ma ho",
        "pt": "o os as que é uma para com não do da em um no na se por mais como dos ao você são",
        "nl": "de het een en van is dat niet op te met voor zijn er aan ik je wij ook maar bij naar om",
        "sv": "och att det som en är på för inte med av till den har jag vi ett om så kan men",
        "pl": "i w na się nie jest to że z do jak po co za ale od przez dla tak są ma już być",
        "tr": "ve bir bu da de için ile çok ne o ben daha gibi var mi ama olarak en değil",
    }.items()
}
LANGUAGES = frozenset({*_SMALL_WORDS, *(name for name, _ in _SCRIPTS)})
"""ISO 639-1 codes of those that can be told."""
_LEAST_WORDS = 20
_LEAST_LETTERS = 20
_CLEARLY = 0.6
"""Share of a text's letters that one script must have."""
_LEAST_SHARE = 0.15
"""Share of small words among all words under which a text is no prose."""
_LEAST_DIFFERENT = 4
"""How many different small words prose has at least; code repeats the few that are names in it."""
_LEAD = 1.3
"""How many times as many small words of the first language as of the second there must be."""


def language_of(text: str) -> str | None:
    """ISO 639-1 code of the language that a text is clearly in, or None."""
    letters = Counter(found.lastgroup for found in _LETTERS.finditer(text))
    total = sum(letters.values())
    if not total:
        return None
    # Japanese mixes its own letters with Chinese ones.
    if letters["ja"] * 5 >= letters["zh"] and letters["ja"]:
        letters["ja"] += letters.pop("zh", 0)
    script, count = letters.most_common(1)[0]
    if count < max(_LEAST_LETTERS, _CLEARLY * total):
        return None
    return script if script != "latin" else _latin(text)


def _latin(text: str) -> str | None:
    words = _WORDS.findall(text.lower())
    if len(words) < _LEAST_WORDS:
        return None
    scores = sorted(
        ((sum(word in small for word in words), language) for language, small in _SMALL_WORDS.items()), reverse=True
    )
    (best, language), (second, _) = scores[:2]
    if len(_SMALL_WORDS[language].intersection(words)) < _LEAST_DIFFERENT:
        return None
    return language if best >= _LEAST_SHARE * len(words) and best >= _LEAD * second else None
