"""Learning curves are those of the logs, with the end of the warm start."""

import re

import pytest
from clock_reports import compare_folder, written
from result_files import write_lines

from mm_numeric.evaluation.report.charts import choose_styles
from mm_numeric.evaluation.report.learning_curves import curves_section
from mm_numeric.evaluation.report.results import read_comparison, read_runs


def page_of(log):
    """Return the HTML of the curves of a run."""
    section = curves_section(choose_styles(["run"], "", None), {("run", 0): log}, {}, "run")
    return str(section.content.html)


def test_curves_start_and_end_where_the_logs_do(tmp_path):
    _, twin = written(tmp_path, compare_folder(tmp_path))
    assert "| `ce` | `ce` | 1.0050 (step 1) | 0.1300 (step 8) | 0.1300 |" in twin
    assert "| `emd` | `emd` | 0.5050 (step 1) | 0.0675 (step 8) | 0.0675 |" in twin
    assert "| `emd` | `ce` | 0" not in twin


def test_a_component_that_was_never_finite_is_named_and_not_drawn(tmp_path):
    summary = compare_folder(tmp_path)
    for seed in (0, 1):  # log.jsonl has null in place of NaN
        lines = [{"step": k, "components": {"ce": 1.0 / k, "emd": None}} for k in (1, 2)]
        write_lines(tmp_path / f"seed{seed}" / "run1" / "log.jsonl", lines)
    page, twin = written(tmp_path, summary)
    assert "Not drawn, because no finite value was logged: emd." in twin
    assert "ce by training step for" in page
    assert "emd by training step" not in page


def test_the_share_of_clipped_steps_is_a_mean_over_the_log_and_seeds(tmp_path):
    summary = compare_folder(tmp_path)
    for seed, shares in ((0, (0.2, 0.4)), (1, (0.0, 0.2))):
        lines = [{"step": k, "components": {"ce": 1.0}, "clipping": {"share_of_steps": share}}
                 for k, share in enumerate(shares, 1)]  # fmt: skip
        write_lines(tmp_path / f"seed{seed}" / "run0" / "log.jsonl", lines)
    _, twin = written(tmp_path, summary)
    section = twin.split("## Learning curves")[1].split("\n## ")[0]
    assert "*Steps with clipped gradient*\n\n| objective | clipped |" in section
    assert section.rstrip().endswith("| `ce` | 20.0% |")  # emd did not log it


def test_a_row_begins_with_the_warm_start_that_it_went_on_from(tmp_path):
    """Each of two seeds has a line of the shared warm start, and one of the row's own."""
    summary = compare_folder(tmp_path, objectives=("ce", "emd", "xval"))
    for run in summary["runs"]:
        run["warm_start"] = f"seed{run['seed']}/warm_start" + "_xval" * (run["objective"] == "xval")
    page, _ = written(tmp_path, summary)
    assert page.count('stroke="var(--warm)"') == 2  # of the panel of ce
    assert "have the colour of the first of these" not in page
    for seed in (0, 1):
        lines = [
            {"step": 10 * k, "components": {"ce": 3 - 0.1 * k, "xval": k}} for k in range(1, 11)
        ]
        own = tmp_path / f"seed{seed}" / "warm_start_xval"
        own.mkdir()
        write_lines(own / "log.jsonl", lines)
    with_own, _ = written(tmp_path, summary)
    assert with_own.count('stroke="var(--warm)"') == 2
    assert with_own.count('stroke-width="1.2"') == page.count('stroke-width="1.2"') + 4
    assert "have the colour of the first of these" in with_own


def test_the_steps_of_a_distilled_run_follow_on_those_of_its_teacher(tmp_path):
    summary = compare_folder(tmp_path)
    line = {"step": 100, "components": {"emd": 0.25}}
    for seed in (0, 1):
        teacher = tmp_path / f"seed{seed}" / "run1" / "teacher"
        teacher.mkdir()
        write_lines(teacher / "log.jsonl", [line])
    _, twin = written(tmp_path, summary)
    assert "0.2500 (step 100)" in twin
    before, first, *rest = read_runs(read_comparison(tmp_path))[0]["emd", 0]
    assert (before, first["step"], rest[6]["step"]) == (line, 101, 108)


@pytest.mark.parametrize("count", [1, 3, 400])
def test_each_logged_value_of_a_run_has_a_panel(count):
    lines, name = [], "a<b & café"
    for step in range(1, count + 1):
        lines.append({"step": step, "loss": step, "learning_rate": 1, "components": {name: step}})
        metrics = {"accuracy": step, "error": None, "exact": step, "late": step, "fourth": step}
        lines.append({"step": step, "eval": metrics})
    page = page_of(lines).partition("<details")[0]
    names = re.findall(r'aria-label="(\S+?|a&lt;b.*?) by training step', page)
    assert list(dict.fromkeys(names)) == ["loss", "a&lt;b &amp; café", "accuracy", "exact", "late"]


def test_the_best_evaluation_is_inside_its_panel():
    """A spike of the loss may be outside: it would flatten the rest."""
    lines = [{"step": step, "loss": 90.0 if step == 20 else 1.0} for step in range(1, 401)]
    lines += [{"step": step, "eval": {"accuracy": 0.9 * (step == 20)}} for step in range(1, 21)]
    loss, accuracy = (
        min(float(y) for y in re.findall(r"[ML][0-9.]+,(-?[0-9.]+)", panel))
        for panel in page_of(lines).split("<figure")[1:]
    )
    assert loss < 0 < accuracy


def test_the_axis_begins_at_the_first_step_of_any_objective(tmp_path):
    summary = compare_folder(tmp_path)
    for seed in (0, 1):
        lines = [{"step": k, "components": {"ce": 1.0 / k}} for k in (5, 8)]
        write_lines(tmp_path / f"seed{seed}" / "run0" / "log.jsonl", lines)
    page, _ = written(tmp_path, summary)
    panel = next(part for part in page.split("<figure")[1:] if "ce by training step for" in part)
    xs = [float(x) for x in re.findall(r"[ML](-?[0-9.]+),", panel)]
    assert -20 < min(xs) < max(xs)  # markers begin at 0


def test_nothing_is_drawn_of_an_empty_log():
    assert curves_section(choose_styles(["run"], "", None), {("run", 0): []}, {}, "run") is None
