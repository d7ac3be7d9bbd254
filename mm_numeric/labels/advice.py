"""Which loss and which decoding rule fit labels with given errors, as docs/choose.md recommends."""

from typing import NamedTuple

from mm_numeric.labels.errors import LabelErrors

TIMES, NUMBERS, BOXES, LISTS = "times", "numbers", "boxes", "lists of objects"


class Advice(NamedTuple):
    """A row of the table "By labels and task" in docs/choose.md."""

    labels: str
    loss: str
    rule: str
    evidence: str
    """The beginning of the evidence in the table."""

    result: str
    """Heading of the published experiment in docs/results/README.md, as a link."""


_ONE_DIRECTION = "labels whose errors have one direction, such as times that are noted late"

ROWS = (
    Advice(
        "exact times",
        "ce",
        "median or greedy",
        "clock_noise: no difference between losses or rules is clear",
        "noise-of-the-labels",
    ),
    Advice(
        "exact numbers",
        "ce",
        "median",
        "arithmetic_smollm2, planned: the median against greedy, mean absolute error -4.85, "
        "p < 0.001, from 18.95",
        "sums-with-a-pretrained-model",
    ),
    Advice(
        "exact boxes",
        "ce",
        "mbr",
        "grounding_noise: mbr against greedy, Acc@0.75 +4.2, p 0.002",
        "noise-of-the-boxes",
    ),
    Advice(
        "times that people read, off by 2 to 5 minutes in either direction",
        "ce",
        "median",
        "clock_evidence, planned: the median against greedy, within 1 minute +21.5, p < 0.001 at "
        "5 minutes",
        "four-kinds-of-noise",
    ),
    Advice(
        "times that are off by about 10 minutes",
        "ce",
        "median",
        "clock_evidence, planned: the median against greedy, within 1 minute +10.0, p 0.030",
        "four-kinds-of-noise",
    ),
    Advice(
        "boxes with edges that are off by some pixels",
        "ce",
        "mbr",
        "grounding_evidence, planned: mbr against greedy, Acc@0.75 +2.7, p 0.013",
        "noisy-boxes-again",
    ),
    Advice(
        _ONE_DIRECTION,
        "ce",
        "greedy, or quantile_0.3",
        "clock_evidence, planned: the median against greedy, within 1 minute -15.7, p < 0.001",
        "four-kinds-of-noise",
    ),
    Advice(
        "times, a few of which are wrong at random",
        "ce",
        "any",
        "clock_evidence, planned: no gain is clear",
        "four-kinds-of-noise",
    ),
)
"""The rows of docs/choose.md that a second labelling can tell apart."""

_BY_LABELS = {row.labels: row for row in ROWS}
_FEW_MINUTES, _TEN_MINUTES = 1.0, 7.0  # from these standard deviations on, times are not exact
_SMALL_BIAS = 0.25  # of the noise: shifts the median by less than the noise allows to see


def advice(kind: str, errors: LabelErrors, unit: str, step: float, *, same_care: bool) -> str:
    """Return one line: loss, rule, the row of docs/choose.md and its evidence.

    ``step`` is the smallest step between labels, in ``unit``.
    """
    bias = errors.biases[0]
    is_biased = (
        not same_care
        and bias.low * bias.high > 0
        and abs(bias.value) > max(_SMALL_BIAS * errors.noise.value, step / 2)
    )
    found = _BY_LABELS[
        _ONE_DIRECTION if is_biased and errors.has_peak else _row(kind, errors, step)
    ]
    first = ""
    if is_biased and not errors.has_peak:
        amount = f"{abs(bias.value):.3g}{f' {unit}' * (unit != '%')}"
        if unit == "%":
            amount = f"{100 * abs(bias.value):.3g} %"
        verb = "add" if bias.value < 0 else "subtract"
        first = f"{verb} {amount} {'to' if bias.value < 0 else 'from'} the labels first; then "
        if kind in (BOXES, LISTS):
            larger = "larger" if bias.value < 0 else "smaller"
            first = f"make the boxes {amount} {larger} on each side first; then "
    note = ""
    if kind == NUMBERS and found.labels == _ONE_DIRECTION:
        note = " (measured with times)"
    elif kind == NUMBERS and errors.noise.value > step:
        note = " (noisy numbers are not measured; on noisy times the median gains, too)"
    elif kind == LISTS:
        note = " (measured with one box per image)"
    if same_care:
        note += "; whether the errors have one direction, only a more careful labelling shows"
    return (
        f"{first}loss {found.loss}, rule {found.rule}, as for {found.labels!r}: {found.evidence}"
        f"{note}; docs/choose.md, docs/results/README.md#{found.result}"
    )


def _row(kind: str, errors: LabelErrors, step: float) -> str:
    noise, random = errors.noise.value, errors.shares.get("random labels")
    if kind == NUMBERS:
        return "exact numbers"
    if kind in (BOXES, LISTS):
        is_exact = noise < max(1.0, step)
        return "exact boxes" if is_exact else "boxes with edges that are off by some pixels"
    if noise < _FEW_MINUTES:
        is_random = random is not None and random.low > 0
        return "times, a few of which are wrong at random" if is_random else "exact times"
    if noise < _TEN_MINUTES:
        return "times that people read, off by 2 to 5 minutes in either direction"
    return "times that are off by about 10 minutes"
