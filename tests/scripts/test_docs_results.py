"""scripts/docs_results.py: differences and p-values of the documentation, computed by hand."""

import dataclasses
import json
import math
import re
import sys

import pytest
from documents import PAGES, ROOT

sys.path.append(str(ROOT / "scripts"))
import docs_results


def p_of_five(differences):
    """Return the two-sided p-value of Student's t with four degrees of freedom."""
    mean = sum(differences) / 5
    variance = sum((own - mean) ** 2 for own in differences) / 4
    if not variance:
        return 1.0
    t = abs(mean) / math.sqrt(variance / 5)
    x = t / math.sqrt(1 + t * t / 4)
    return 1 - 2 * (3 / 8 * x * (1 - x * x / 12))


def summary(name):
    return json.loads((ROOT / f"docs/results/{name}/summary.json").read_text(encoding="utf-8"))


def test_pairs_equal_the_seeds_of_the_summaries():
    metrics = {"clock_noise": "within_5_minutes", "clock_rows": "within_5_minutes",
               "grounding_noise": "accuracy_at_0.5",
               "arithmetic_decoding": "accuracy_interpolation"}  # fmt: skip
    wanted = {}
    for name, metric in metrics.items():
        decoding = summary(name)["decoding"]
        rule = "mbr" if name == "grounding_noise" else "median"
        for row in (own for own in decoding if own.startswith("pathrisk")):
            seeds = (decoding[own][rule][metric]["seeds"]
                     for own in (row, row.replace("pathrisk", "ce")))  # fmt: skip
            wanted[name, row] = [a - b for a, b in zip(*seeds, strict=True)]
    assert len(wanted) == 12
    smallest, corrected = 0.0, {}
    p_values = {key: p_of_five(own) for key, own in wanted.items()}
    for rank, key in enumerate(sorted(p_values, key=p_values.get)):
        smallest = corrected[key] = max(smallest, min(1.0, (12 - rank) * p_values[key]))
    found = {
        (own.experiment.name, own.better): own.changes[0]
        for own in docs_results.pair_differences("pathrisk", "ce", decoded=True)
    }
    assert found.keys() == wanted.keys()
    for key, (value, p) in found.items():
        assert value == pytest.approx(sum(wanted[key]) / 5, abs=1e-12)
        assert p == pytest.approx(corrected[key], abs=1e-4)
    clear = {key for key, (_, p) in found.items() if p <= 0.05}
    assert clear == {("clock_noise", "pathrisk_label_noise_minutes_10"),
                     ("grounding_noise", "pathrisk_label_noise_pixels_4")}  # fmt: skip


def test_the_first_metric_has_the_p_values_of_the_summary():
    """They are not corrected again: its families are those of compare."""
    stored = summary("clock_noise")
    for own in docs_results.differences("clock_noise"):
        row, _, rule = own.better.partition(", ")
        cells = stored["decoding"][row][rule] if rule else stored["table"][row]
        difference = cells["within_5_minutes"]["difference"]
        assert own.changes[0] == (
            difference["value"],
            pytest.approx(difference["p_holm"], rel=1e-3),
        )


def test_a_claim_that_is_not_clear_is_an_error():
    first = docs_results.CLAIMS[0]
    unclear = dataclasses.replace(
        first, better="ce_label_noise_minutes_0, median", other="ce_label_noise_minutes_0"
    )
    with pytest.raises(ValueError, match="is shown by no clear difference"):
        unclear.difference()
    assert first.difference().is_clear


def test_every_table_of_clocks_has_three_metrics():
    for page in ("results/README.md", "comparisons/clocks.md", "decoding.md"):
        for table in re.findall(
            r"<!-- generated: values clock.*?<!-- end -->", PAGES[f"docs/{page}"], re.DOTALL
        ):
            for label in ("Within 5 min (%)", "Within 1 min (%)", "Mean deviation (min)"):
                assert label in table


def test_the_figures_of_the_page_of_choices_are_those_of_the_claims():
    """Each one is on a line of the claims about the experiment that is named before it."""
    experiment, figures = r"`([a-z]+_[a-z0-9]+)`(?:, planned)?: ", r"[-+]\d[\d.]*, p (?:< )?0\.\d+"
    _, *parts = re.split(experiment, PAGES["docs/choose.md"])
    found = 0
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        lines = [
            own for own in PAGES["docs/results/claims.md"].splitlines() if f"| `{name}`" in own
        ]
        known = set(re.findall(figures, "\n".join(lines)))
        for figure in re.findall(figures, text.partition("|")[0]):
            assert figure in known, (name, figure)
            found += 1
    assert found >= 10
