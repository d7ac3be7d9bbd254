"""Which loss and which decoding rule fit labels with given errors, as docs/choose.md recommends."""

from mm_numeric.evaluation.score_text import in_unit
from mm_numeric.labels.errors import RANDOM, LabelErrors

_ONE_DIRECTION = "labels whose errors have one direction, such as times that are noted late"
_AT_RANDOM = "times, a few of which are wrong at random"
_NO_NOISE = "clock_noise: no difference between losses or rules is clear"
_CLOCKS = "clock_evidence, planned: the median against greedy, within 1 minute"
_SUMS = "arithmetic_smollm2, planned: the median against greedy, mean absolute error -4.85"
_BOXES = "grounding_evidence, planned: mbr against greedy, Acc@0.75 +2.7, p 0.013"
_MOST = float("inf")

ADVICE = {
    "exact times": ("min", 1, "median or greedy", _NO_NOISE),
    "times that people read, off by 2 to 5 minutes in either direction":
        ("min", 7, "median", f"{_CLOCKS} +21.5, p < 0.001 at 5 minutes"),
    "times that are off by about 10 minutes": ("min", _MOST, "median", f"{_CLOCKS} +10.0, p 0.030"),
    "exact numbers": ("", _MOST, "median", f"{_SUMS}, p < 0.001"),
    "exact boxes": ("px", 1, "mbr", "grounding_noise: mbr against greedy, Acc@0.75 +4.2, p 0.002"),
    "boxes with edges that are off by some pixels": ("px", _MOST, "mbr", _BOXES),
    _ONE_DIRECTION: (None, 0, "greedy, or quantile_0.3", f"{_CLOCKS} -15.7, p < 0.001"),
    _AT_RANDOM: (None, 0, "any", "clock_evidence, planned: no gain is clear"),
}  # fmt: skip
"""Labels -> unit, noise below which the row holds, rule and evidence, from docs/choose.md."""


def advice(errors: LabelErrors, unit: str, step: float) -> str:
    """Return loss, rule and evidence in one line; ``step`` is the smallest step between labels."""
    if errors.shares[RANDOM].value > 0.5:
        return "check that both files label the same images: most labels have nothing in common"
    bias, noise, first = errors.biases[0], errors.noise.value, ""
    rows = (own for own, (of, most, *_) in ADVICE.items() if of == unit.strip("%") and noise < most)
    labels = next(rows)
    if labels == "exact times" and errors.shares[RANDOM].low > 0:
        labels = _AT_RANDOM
    # A smaller bias, as a share of the noise, hardly affects decoding by the median.
    if bias.low * bias.high > 0 and abs(bias.value) > max(0.25 * noise, step / 2):
        if errors.has_peak:
            labels = _ONE_DIRECTION
        else:
            place = "each side of the boxes" if unit == "px" else "the labels"
            first = f"subtract the bias of {in_unit(bias.value, unit)} from {place}; then "
    *_, rule, evidence = ADVICE[labels]
    return f"{first}loss ce, rule {rule}, as for {labels!r}: {evidence}; docs/choose.md"
