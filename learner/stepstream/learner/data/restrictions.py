"""Name the reason why a sampled token is context only: its distribution is not one that the learner can compute. Pure.

With a sampling mask the learner computes that of tokens which truncation or a grammar restricted.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stepstream.learner.data.kept_ids import KeptIds
from stepstream.topics.sampling_restrictions import MASKED, RESTRICTIONS

_UNFIT_MASK, _UNKNOWN = "sampling_mask", "restricted_sampling"
REASONS = (*(f"{name}_sampling" for name in RESTRICTIONS), _UNFIT_MASK, _UNKNOWN)
"""In order of precedence: an attempt without a trained token is dropped with the first one of its tokens."""
TRAINABLE = -1


def token_reasons(
    sequence: Mapping[str, Any], chosen: npt.NDArray[np.int64], kept: KeptIds | None
) -> npt.NDArray[np.int64]:
    """Return the index in `REASONS` of each sampled token's reason, or `TRAINABLE`. Shape [sampled tokens].

    Args:
        sequence: a TrainingSequence.
        chosen: ids of its sampled tokens.
        kept: its sampling mask; None: it has none.
    """
    spans = sequence["spans"]
    sizes = [span["end"] - span["start"] for span in spans]
    reasons = np.repeat(np.array([_code(span["restriction"]) for span in spans], np.int64), sizes)
    if kept is None:
        return reasons
    masked = np.repeat([span["restriction"] in MASKED for span in spans], sizes) & (kept.counts > 0)
    reasons[masked] = TRAINABLE
    # One token outside its ids means that mask and tokens are not of the same response.
    span_of = np.repeat(np.arange(len(spans)), sizes)
    reasons[np.isin(span_of, span_of[kept.lack(chosen)])] = REASONS.index(_UNFIT_MASK)
    return reasons


def first_reason(reasons: Collection[str]) -> str:
    """Return the first of some of `REASONS`; empty: there are none."""
    return next((reason for reason in REASONS if reason in reasons), "")


def _code(restriction: str) -> int:
    if not restriction:
        return TRAINABLE
    return REASONS.index(f"{restriction}_sampling" if restriction in RESTRICTIONS else _UNKNOWN)
