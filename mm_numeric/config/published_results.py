"""Results of two papers, which the report of a comparison can show (``compare.published``).

NTL     Regress, Don't Guess, arXiv 2411.02083
NTIL    Advancing Sequential Numerical Prediction in Autoregressive Models, arXiv 2505.13077

The values come from public notes on the papers, not from the papers themselves, and are incomplete:

NTL     missing: integer arithmetic, multiplication, rJokes, MultiRC, the loss weight (lambda), and
        all plots
NTIL    missing: most results on mathematics, except those of the ablation study

Table rows are named as in the shipped configs, metrics as in results.json. Accuracies are between 0
and 1, time deviations are in minutes. Does not import torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_NTL, _NTIL = "NTL, arXiv 2411.02083", "NTIL, arXiv 2505.13077"

_MATHVISTA = (
    "MathVista: accuracy; the paper does not state which rules of the script, whose answers GPT-4 "
    "extracts and not rules"
)


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """One table of results from a paper. Some of its rows or metrics may be missing."""

    source: str
    """Name and arXiv number of the paper."""

    of: str
    """Model, dataset and metric, and what the paper does not state about them."""

    values: Mapping[tuple[str, str], float]
    """``values[row, metric]`` is a result; a row is a training objective or a baseline."""

    @property
    def rows(self) -> list[str]:
        """Return the row names of this table: training objectives and baselines, such as ``ce``."""
        return list(dict.fromkeys(row for row, _ in self.values))

    @property
    def metrics(self) -> list[str]:
        """Return the names of the metrics (columns) of this table."""
        return list(dict.fromkeys(metric for _, metric in self.values))


def _table(
    source: str, of: str, metrics: Sequence[str], rows: Mapping[str, Sequence[float]]
) -> PublishedTable:
    values = {
        (row, metric): value
        for row, cells in rows.items()
        for metric, value in zip(metrics, cells, strict=True)
    }
    return PublishedTable(source=source, of=of, values=values)


def _one_metric(source: str, of: str, metric: str, *values: float) -> PublishedTable:
    """Create a table with one metric. ``values`` are the results of the losses CE, EMD, NTIL."""
    rows = {name: [value] for name, value in zip(("ce", "emd", "ntil"), values, strict=True)}
    return _table(source, of, [metric], rows)


def _grounding(model: str, *values: float) -> PublishedTable:
    return _one_metric(_NTIL, f"{model}, visual grounding: Acc@0.5", "accuracy_at_0.5", *values)


def _text_detection(model: str, *values: float) -> PublishedTable:
    of = f"{model}, text detection: Acc@0.5, averaged over data sets; not defined in the paper"
    return _one_metric(_NTIL, of, "ntil_accuracy_at_0.5", *values)


def _clock(model: str, **rows: tuple[float, float]) -> PublishedTable:
    of = (
        f"{model}, reading clocks: accuracy, and time deviation in minutes; the paper does not "
        "state whether it is the circular distance"
    )
    return _table(_NTIL, of, ["exact", "mean_deviation_minutes"], rows)


def _ablation(of: str, metric: str, *values: float) -> PublishedTable:
    names = ("ntil_without_exp", "ntil_without_relative", "ntil_without_magnitude", "ntil")
    rows = {name: [value] for name, value in zip(names, values, strict=True)}
    return _table(_NTIL, f"{of}; the ablation of NTIL's terms", [metric], rows)


PUBLISHED: Mapping[str, PublishedTable] = {
    "ntl_mathematics": _table(
        _NTL,
        "T5-base (220M), the mathematics data set, one token per digit: accuracy, MAE and R2, "
        "assumed to be those of the logarithms (numbers could not have so small a MAE)",
        ["accuracy", "log_mae", "log_r2"],
        {
            "ce": [0.64, 0.13, 0.97],
            "ntl_mse": [0.72, 0.11, 0.97],
            "ntl_was": [0.75, 0.10, 0.98],
            "regression_transformer": [0.71, 0.11, 0.97],
            "xval": [0.10, 0.26, 0.97],
        },
    ),
    "ntl_tokenisation": _table(
        _NTL,
        "T5-base (220M), the mathematics data set, the original tokenizer and one token per digit: "
        "accuracy",
        ["accuracy"],
        {
            "ce_merged": [0.43],
            "ce_single": [0.64],
            "ntl_was_merged": [0.51],
            "ntl_was_single": [0.75],
        },
    ),
    "ntl_gsm8k": _table(
        _NTL, "T5-3B, GSM8K: accuracy", ["accuracy"], {"ce": [0.135], "ntl_was": [0.177]}
    ),
    "ntil_grounding_paligemma_3b": _grounding("PaliGemma-3B", 0.785, 0.789, 0.795),
    "ntil_grounding_llava_7b": _grounding("LLaVA-1.5-7B", 0.818, 0.820, 0.822),
    "ntil_grounding_yi_vl_6b": _grounding("Yi-VL-6B", 0.733, 0.740, 0.744),
    "ntil_grounding_qwen2_vl_2b": _grounding("Qwen2-VL-2B", 0.863, 0.859, 0.866),
    "ntil_grounding_qwen2_vl_7b": _grounding("Qwen2-VL-7B", 0.860, 0.855, 0.862),
    "ntil_text_detection_paligemma_3b": _text_detection("PaliGemma-3B", 0.193, 0.241, 0.263),
    "ntil_text_detection_qwen2_vl_2b": _text_detection("Qwen2-VL-2B", 0.720, 0.718, 0.732),
    "ntil_text_detection_qwen2_vl_7b": _text_detection("Qwen2-VL-7B", 0.764, 0.751, 0.770),
    "ntil_text_detection_llava_7b": _text_detection("LLaVA-1.5-7B", 0.675, 0.690, 0.698),
    "ntil_clock_llava_7b": _clock("LLaVA-1.5-7B", ce=(0.951, 8.52), ntil=(0.983, 4.14)),
    "ntil_clock_yi_vl_6b": _clock("Yi-VL-6B", ce=(0.762, 56.58), ntil=(0.874, 26.58)),
    "ntil_clock_qwen2_vl_2b": _clock("Qwen2-VL-2B", ce=(0.813, 32.34), ntil=(0.853, 24.66)),
    "ntil_ablation_mathvista_paligemma_3b": _ablation(
        f"PaliGemma-3B, {_MATHVISTA}", "rules_2023", 0.137, 0.137, 0.142, 0.157
    ),
    "ntil_ablation_mathvista_llava_7b": _ablation(
        f"LLaVA-1.5-7B, {_MATHVISTA}", "rules_2023", 0.166, 0.154, 0.143, 0.170
    ),
    "ntil_ablation_clock_yi_vl_6b": _ablation(
        "Yi-VL-6B, reading clocks: accuracy", "exact", 0.834, 0.856, 0.876, 0.874
    ),
}
