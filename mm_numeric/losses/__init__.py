"""Numeric losses: one shared cross-entropy plus weighted terms.

Adding a term is one file and one line in ``TERMS``; a combination worth a name is one line in
``PRESETS``. This file and ``presets`` load no torch, so that a config is checked in a moment.
"""

from collections.abc import Mapping

from mm_numeric.losses.presets import PRESETS, ObjectiveSpec, TermSpec

TERMS: Mapping[str, str] = {
    "digit_ce": "mm_numeric.losses.entropies:PlaceWeightedCrossEntropy",
    "gce": "mm_numeric.losses.targets:GaussianCrossEntropy",
    "ntl_was": "mm_numeric.losses.distance:ExpectedDistance",
    "ntl_was_cdf": "mm_numeric.losses.distance:CumulativeDistance",
    "ntl_mse": "mm_numeric.losses.moments:SquaredError",
    "ntl_mae": "mm_numeric.losses.moments:AbsoluteError",
    "ntl_huber": "mm_numeric.losses.moments:HuberError",
    "nl_ntl": "mm_numeric.losses.sequence:SymmetricPercentage",
    "rps": "mm_numeric.losses.proper:RankedProbability",
    "smmd": "mm_numeric.losses.proper:SmoothedDiscrepancy",
    "dist2": "mm_numeric.losses.targets:SpreadTarget",
    "del": "mm_numeric.losses.entropies:DigitEntropy",
    "emd": "mm_numeric.losses.distance:DigitDistance",
    "emd_exp": "mm_numeric.losses.distance:PlaceWeightedDistance",
    "relative": "mm_numeric.losses.sequence:RelativeError",
    "magnitude": "mm_numeric.losses.sequence:MagnitudeError",
    "relative_soft": "mm_numeric.losses.sequence:SoftRelativeError",
    "magnitude_soft": "mm_numeric.losses.sequence:SoftMagnitudeError",
    "box_l1": "mm_numeric.losses.shapes:BoxDistance",
    "box_giou": "mm_numeric.losses.shapes:BoxOverlap",
    "time": "mm_numeric.losses.shapes:TimeDistance",
}
"""Name of each term to where its class is."""

__all__ = ["PRESETS", "TERMS", "ObjectiveSpec", "TermSpec"]
