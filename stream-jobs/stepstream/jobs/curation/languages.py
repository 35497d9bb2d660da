"""Detect the language of a text by its script and its most frequent function words. Pure.

It answers one question: is the text clearly in another language than the policy lists? It returns None for short texts
(under 20 words, or 20 letters of a script without spaces), mixed texts and code. An unlisted language is detected as
the nearest listed one of its script, or as none: Ukrainian and Bulgarian as Russian, Persian and Urdu as Arabic,
Marathi as Hindi.
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
_FUNCTION_WORDS = {
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
LANGUAGES = frozenset({*_FUNCTION_WORDS, *(name for name, _ in _SCRIPTS)})
"""ISO 639-1 codes of the languages that can be detected."""
_MIN_WORDS = 20
_MIN_LETTERS = 20
_MIN_SCRIPT_SHARE = 0.6
"""Lowest share of a text's letters in one script."""
_MIN_SHARE = 0.15
"""Lowest share of function words among the words of prose."""
_MIN_DIFFERENT = 4
"""Lowest number of different function words in prose; code repeats the few that are names in it."""
_MIN_LEAD = 1.3
"""Lowest ratio of function words of the best language to those of the second."""


def language_of(text: str) -> str | None:
    """Return the ISO 639-1 code of the language in which a text clearly is, or None."""
    letters = Counter(match.lastgroup for match in _LETTERS.finditer(text))
    total = sum(letters.values())
    if not total:
        return None
    # Japanese mixes kana with Chinese characters.
    if letters["ja"] * 5 >= letters["zh"] and letters["ja"]:
        letters["ja"] += letters.pop("zh", 0)
    script, count = letters.most_common(1)[0]
    if count < max(_MIN_LETTERS, _MIN_SCRIPT_SHARE * total):
        return None
    return script if script != "latin" else _latin(text)


def _latin(text: str) -> str | None:
    words = _WORDS.findall(text.lower())
    if len(words) < _MIN_WORDS:
        return None
    counts = ((sum(word in known for word in words), language) for language, known in _FUNCTION_WORDS.items())
    scores = sorted(counts, reverse=True)
    (best, language), (second, _) = scores[:2]
    if len(_FUNCTION_WORDS[language].intersection(words)) < _MIN_DIFFERENT:
        return None
    return language if best >= _MIN_SHARE * len(words) and best >= _MIN_LEAD * second else None
