"""Which loss and which decoding rule fit labels with given errors, as docs/choose.md recommends."""

from typing import NamedTuple

from mm_numeric.labels.errors import RANDOM, LabelErrors

TIMES, NUMBERS, BOXES, LISTS = "times", "numbers", "boxes", "lists of objects"
_FEW_MINUTES = "times that people read, off by 2 to 5 minutes in either direction"
_TEN_MINUTES = "times that are off by about 10 minutes"
_ONE_DIRECTION = "labels whose errors have one direction, such as times that are noted late"
_AT_RANDOM = "times, a few of which are wrong at random"
_SOME_PIXELS = "boxes with edges that are off by some pixels"


class Advice(NamedTuple):
    """What docs/choose.md recommends for one kind of labels; the loss is always ``ce``."""

    rule: str
    evidence: str
    """The beginning of the evidence in docs/choose.md."""

    result: str
    """The heading of the experiment in docs/results/README.md, as an anchor."""


_CLOCKS, _MEDIAN = "four-kinds-of-noise", "the median against greedy"
_MINUTE = f"clock_evidence, planned: {_MEDIAN}, within 1 minute"
_SUMS = f"arithmetic_smollm2, planned: {_MEDIAN}, mean absolute error -4.85"
_EXACT_BOXES = "grounding_noise: mbr against greedy, Acc@0.75 +4.2, p 0.002"
_NOISY_BOXES = "grounding_evidence, planned: mbr against greedy, Acc@0.75 +2.7, p 0.013"
_NO_NOISE = "clock_noise: no difference between losses or rules is clear"

ADVICE = {
    "exact times": Advice("median or greedy", _NO_NOISE, "noise-of-the-labels"),
    _FEW_MINUTES: Advice("median", f"{_MINUTE} +21.5, p < 0.001 at 5 minutes", _CLOCKS),
    _TEN_MINUTES: Advice("median", f"{_MINUTE} +10.0, p 0.030", _CLOCKS),
    _ONE_DIRECTION: Advice("greedy, or quantile_0.3", f"{_MINUTE} -15.7, p < 0.001", _CLOCKS),
    _AT_RANDOM: Advice("any", "clock_evidence, planned: no gain is clear", _CLOCKS),
    "exact numbers": Advice("median", _SUMS, "sums-with-a-pretrained-model"),
    "exact boxes": Advice("mbr", _EXACT_BOXES, "noise-of-the-boxes"),
    _SOME_PIXELS: Advice("mbr", _NOISY_BOXES, "noisy-boxes-again"),
}
"""Those rows of the table "By labels and task" in docs/choose.md that errors of labels decide."""

_MOST_RANDOM = 0.5
_SMALL_BIAS = 0.25  # as a share of the noise; decoding by the median is hardly affected


def advice(kind: str, errors: LabelErrors, unit: str, step: float, *, same_care: bool) -> str:
    """Return, in one line, the loss and the rule for labels with these errors, and the evidence.

    ``step`` is the smallest step between labels, in ``unit``.
    """
    if RANDOM in errors.shares and errors.shares[RANDOM].value > _MOST_RANDOM:
        return "check that both files label the same images: most labels have nothing in common"
    bias, noise = errors.biases[0], errors.noise.value
    is_biased = bias.low * bias.high > 0 and not same_care
    is_biased = is_biased and abs(bias.value) > max(_SMALL_BIAS * noise, step / 2)
    labels, first, note = _without_direction(kind, errors, step), "", ""
    if is_biased and errors.has_peak:
        labels = _ONE_DIRECTION
    elif is_biased:
        size = abs(bias.value)
        amount = f"{100 * size:.3g} %" if unit == "%" else f"{size:.3g} {unit}".rstrip()
        do, where = ("subtract", "inwards") if bias.value > 0 else ("add", "outwards")
        first = f"{do} {amount} {'from' if bias.value > 0 else 'to'} the labels; then "
        if kind in (BOXES, LISTS):
            first = f"move each edge {amount} {where}; then "
    if kind == NUMBERS and (labels == _ONE_DIRECTION or noise > step):
        note = " (not measured with noisy numbers; see the rows of times)"
    if same_care:
        note += "; a more careful labelling shows whether the errors have one direction"
    rule, evidence, result = ADVICE[labels]
    return (
        f"{first}loss ce, rule {rule}, as for {labels!r}: {evidence}{note}; docs/choose.md, "
        f"docs/results/README.md#{result}"
    )


def _without_direction(kind: str, errors: LabelErrors, step: float) -> str:
    """Return the row of docs/choose.md for errors without a main direction."""
    noise = errors.noise.value
    if kind == NUMBERS:
        return "exact numbers"
    if kind in (BOXES, LISTS):
        return "exact boxes" if noise < max(1, step) else _SOME_PIXELS
    if noise >= 1:  # minute
        return _TEN_MINUTES if noise > 7 else _FEW_MINUTES
    return _AT_RANDOM if errors.shares[RANDOM].low > 0 else "exact times"
