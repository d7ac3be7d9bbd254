"""Grids become rows: every combination once, with a name and the warm start that it needs."""

import itertools
from dataclasses import asdict, replace

import pytest
import yaml
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from planned import seed_configs
from synthetic_rows import rows_for
from tiny_models import small_config

from mm_numeric.comparison.rows import compared_rows
from mm_numeric.config.reader import config_from_dict
from mm_numeric.losses.presets import PRESETS
from mm_numeric.settings import setting_at

AXES = {
    "objective": ["ce", "emd", "ntl_was"],
    "objective.numeric_weight": [0.15, 0.3, 0.8, 2],
    "objective.reduction": ["items", "samples"],
    "objective.on_nan": {"kept": "keep", "stopped": "error"},
    "trainer.learning_rate": [1.0e-3, 2.0e-3],
    "data.train.synthetic.noise_minutes": [0, 5.0],
    "model.attention": ["sdpa", "eager"],
}


def config_of(folder, objectives="[]", *, control="null", grid=None, **axes):
    """Return the config of a comparison with a grid; ``__`` stands for a point."""
    axes = grid or {name.replace("__", "."): values for name, values in axes.items()}
    written = yaml.safe_dump(axes, default_flow_style=True, width=999, sort_keys=False)
    compare = f"control: {control}, warm_start: {{}}, grid: {written}"
    where = f"output_dir: {folder / 'compare'}, objectives: {objectives}"
    config = small_config(folder, f"compare={{{where}, {compare}}}")
    compared_rows(config, "clock_tiny.yaml")
    return config


def named(config):
    return {row.name: row for row in compared_rows(config)}


def test_a_grid_is_rows_with_the_names_of_what_differs(tmp_path):
    objectives = ["ntl_was", {"name": "soft", "preset": "gce"}]
    config = config_of(tmp_path, "[ce]", objective=objectives, objective__numeric_weight=[0.15, 2])
    assert [row.name for row in compared_rows(config)] == [
        "ce", "ntl_was_numeric_weight_0.15", "ntl_was_numeric_weight_2",
        "soft_numeric_weight_0.15", "soft_numeric_weight_2",
    ]  # fmt: skip
    row = named(config)["soft_numeric_weight_2"]
    assert row.config.objective.spec == replace(PRESETS["gce"], numeric_weight=2.0)
    assert {row.warm_start for row in compared_rows(config)} == {"warm_start"}
    assert all(row.config.compare is None for row in compared_rows(config))


@pytest.mark.parametrize(("override", "every"), [("", None), ("evaluate={every_steps: 3}", 3)])
def test_rows_are_evaluated_during_training_if_the_config_says_so(tmp_path, override, every):
    objectives = "[ce, {preset: emd, with: {data.train.synthetic.noise_minutes: 1}}]"
    config = small_config(tmp_path, f"compare.objectives={objectives}", *filter(None, [override]))
    for run in seed_configs(config, 0):
        assert (run.evaluate and run.evaluate.every_steps) == every
        # All runs on the same rows, however fast each of them is.
        assert run.evaluate is None or run.evaluate.rows == 200


def test_an_objective_of_a_grid_may_change_other_settings(tmp_path):
    distilled = {"name": "distilled", "with": {"distil": {"decode": "median"}}}
    noise = [0, 3]
    config = config_of(
        tmp_path, objective=["ce", distilled], data__train__synthetic__noise_minutes=noise
    )
    row = named(config)["distilled_noise_minutes_3"]
    assert row.config.distil.decode == "median"
    assert row.config.objective.spec == PRESETS["ce"]
    assert row.warm_start == "warm_start_noise_minutes_3"
    assert row.reference == "ce_noise_minutes_3"
    assert row.axes["objective"] == "distilled"


def test_listed_rows_are_compared_with_the_first_one(tmp_path):
    """Also where another listed row differs only in the objective, as ce_d from ntl_d."""
    options = "with: {distil: {}}"
    listed = f"[ce, {{name: ce_d, {options}}}, {{name: ntl_d, preset: ntl_was, {options}}}]"
    found = {name: row.reference for name, row in named(config_of(tmp_path, listed)).items()}
    assert found == {"ce": None, "ce_d": "ce", "ntl_d": "ce"}


def test_a_grid_axis_does_not_overwrite_a_setting_of_its_objective(tmp_path):
    slow = {"name": "slow", "with": {"trainer.learning_rate": 1.0e-5}}
    message = r"'trainer\.learning_rate' of slow is also an axis; remove one\."
    with pytest.raises(ValueError, match=message):
        config_of(tmp_path, objective=[slow], trainer__learning_rate=[1.0e-3, 2.0e-3])


def test_without_an_objective_the_config_s_own_is_varied(tmp_path):
    weights = {"all": 0.2, "without_relative": 0}
    found = named(config_of(tmp_path, objective__terms__1__weight=weights))
    assert list(found) == ["ntil_all", "ntil_without_relative"]
    terms = found["ntil_without_relative"].config.objective.spec.terms
    assert [term.weight for term in terms] == [1.0, 0.0, 0.2]


@examples(8)
@given(chosen=st.sets(st.sampled_from(list(AXES)), min_size=1, max_size=4))
@pytest.mark.slow
def test_every_combination_is_one_row_that_is_read_again_the_same(tmp_path_factory, chosen):
    folder = tmp_path_factory.getbasetemp()
    grid = {axis: AXES[axis] for axis in AXES if axis in chosen}
    config = config_of(folder, **{axis.replace(".", "__"): grid[axis] for axis in grid})
    rows = compared_rows(config)
    combinations = list(
        itertools.product(*(v.values() if isinstance(v, dict) else v for v in grid.values()))
    )
    assert len(rows) == len({row.name for row in rows}) == len(combinations)
    for row, values in zip(rows, combinations, strict=True):
        wanted = dict(zip(grid, values, strict=True))
        written = row.config.to_dict()
        preset = PRESETS[wanted.pop("objective", "ntil")]
        spec = asdict(preset) | {
            axis.partition(".")[2]: value for axis, value in wanted.items() if "objective." in axis
        }
        assert asdict(row.config.objective.spec) == spec
        for axis, value in wanted.items():
            if not axis.startswith("objective."):
                assert setting_at(written, axis) == value
                assert row.settings[axis] == value
    again = config_from_dict(config.to_dict(), where="again", title=config.title)
    assert [row.config for row in compared_rows(again)] == [row.config for row in rows]
    # Rows share a warm start if they differ only in their objective and trainer.
    for one, other in itertools.combinations(rows, 2):
        settings = [row.config.to_dict() | {"objective": None} for row in (one, other)]
        assert (one.warm_start != other.warm_start) == (
            settings[0] | {"trainer": None} != settings[1] | {"trainer": None}
        )
        if settings[0] == settings[1]:
            assert other.reference == one.reference or other.reference == one.name


def test_a_setting_that_is_the_config_s_own_shares_its_warm_start(tmp_path):
    rows = named(config_of(tmp_path, "[ce]", model__attention=["sdpa", "eager"]))
    assert rows["ntil_attention_sdpa"].warm_start == rows["ce"].warm_start == "warm_start"
    assert rows["ntil_attention_eager"].warm_start == "warm_start_attention_eager"


@pytest.mark.slow
def test_a_learning_rate_axis_shares_warm_starts(tmp_path):
    rates = [1.0e-3, 2.0e-3, 5.0e-3]
    grid = {
        "objective": ["ce", "emd"],
        "trainer.learning_rate": rates,
        "predict.batch_size": [4, 8],
    }
    grid["model.attention"] = ["sdpa", "eager"]
    config = config_of(tmp_path, grid=grid)
    runs = [run for seed in (0, 1) for run in seed_configs(config, seed)]
    warm = [run for run in runs if run.output_dir.name.startswith("warm_start")]
    assert (len(runs), len(warm)) == (4 + 2 * 24, 4)
    assert {run.trainer["learning_rate"] for run in warm} == {1.0e-3}
    assert {run.output_dir.name for run in warm} == {"warm_start", "warm_start_attention_eager"}
    assert {run.trainer["learning_rate"] for run in runs} == set(rates)
    names = {run.model.name for run in runs} - {"tiny"}
    assert names == {str(run.output_dir / "model") for run in warm}


def test_a_row_may_change_the_settings_of_its_warm_start(tmp_path):
    longer = "{compare.warm_start.max_steps: 9, trainer.max_steps: 7}"
    listed = f"[ce, {{name: longer, preset: ce, with: {longer}}}]"
    first, row = compared_rows(config_of(tmp_path, listed))
    assert (row.warm_start, row.warm_trainer["max_steps"]) == ("warm_start_longer", 9)
    assert (first.warm_start, first.warm_trainer["max_steps"]) == ("warm_start", 6)
    assert (row.config.trainer["max_steps"], row.reference) == (7, "ce")


def test_two_warm_starts_do_not_have_one_name(tmp_path):
    listed = "[{name: eager, preset: ce, with: {model.dtype: auto}}]"
    with pytest.raises(
        ValueError, match=r"each warm start needs its own name; got \['warm_start', "
    ):
        config_of(tmp_path, listed, model__attention={"eager": "eager"})


def test_a_row_is_compared_with_the_first_that_differs_only_in_the_objective(tmp_path):
    grid = {"objective": ["ce", "emd"], "data.train.synthetic.noise_minutes": [0, 10]}
    grid["trainer.learning_rate"] = [1.0e-3, 2.0e-3]
    rows = compared_rows(config_of(tmp_path, "[ntil]", grid=grid, control="ce_times_1.3"))
    short = {row.name: row.name.replace("noise_minutes", "noise") for row in rows}
    found = {short[row.name]: short.get(row.reference) for row in rows}
    assert found == {
        "ntil": None,
        "ce_times_1.3": "ntil",
        "ce_noise_0_learning_rate_0.001": None,  # other labels than the first row
        "ce_noise_0_learning_rate_0.002": "ce_noise_0_learning_rate_0.001",
        "ce_noise_10_learning_rate_0.001": None,
        "ce_noise_10_learning_rate_0.002": "ce_noise_10_learning_rate_0.001",
        "emd_noise_0_learning_rate_0.001": "ce_noise_0_learning_rate_0.001",
        "emd_noise_0_learning_rate_0.002": "ce_noise_0_learning_rate_0.002",
        "emd_noise_10_learning_rate_0.001": "ce_noise_10_learning_rate_0.001",
        "emd_noise_10_learning_rate_0.002": "ce_noise_10_learning_rate_0.002",
    }


def test_a_row_with_settings_of_its_own_is_compared_at_its_place_in_the_grid(tmp_path):
    """A distilled row at one learning rate with CE at this rate, not with CE at the first one."""
    distilled = {"name": "distilled", "preset": "ce", "with": {"distil": {"decode": "median"}}}
    rates = {"slow": 1.0e-4, "fast": 2.0e-3}
    objectives = ["ce", "emd", distilled]
    rows = named(config_of(tmp_path, objective=objectives, trainer__learning_rate=rates))
    assert [rows[f"distilled_{rate}"].reference for rate in rates] == ["ce_slow", "ce_fast"]
    rows = named(config_of(tmp_path, "[ce]", objective=["emd", distilled], trainer__max_steps=[4]))
    assert rows["distilled_max_steps_4"].reference == "emd_max_steps_4"


def test_rows_of_a_grid_are_compared_after_warm_starts_of_one_length(tmp_path):
    steps = {"objective": ["ce", "emd"], "compare.warm_start.max_steps": [3, 9]}
    found = {name: row.reference for name, row in named(config_of(tmp_path, grid=steps)).items()}
    assert found == {
        "ce_max_steps_3": None,
        "ce_max_steps_9": "ce_max_steps_3",
        "emd_max_steps_3": "ce_max_steps_3",
        "emd_max_steps_9": "ce_max_steps_9",
    }


def test_a_listed_row_has_settings(tmp_path):
    listed = "[ce, {name: other, preset: emd, with: {model.attention: eager}}]"
    rows = named(config_of(tmp_path, listed, control="ce_times_1.3"))
    assert list(rows) == ["ce", "ce_times_1.3", "other"]
    other = rows["other"]
    assert other.config.model.attention == "eager"
    assert other.config.objective.spec == PRESETS["emd"]
    assert other.warm_start == "warm_start_other"
    assert rows["ce"].config.model.attention == "sdpa"


def test_the_control_has_the_settings_of_the_row_that_it_is_the_control_of(tmp_path):
    listed = "[{name: first, preset: ce, with: {model.attention: eager}}, emd]"
    rows = named(config_of(tmp_path, listed, control="ce_times_1.3"))
    assert rows["ce_times_1.3"].config.model.attention == "eager"
    starts = [row.warm_start for row in rows.values()]
    assert starts == ["warm_start_first", "warm_start_first", "warm_start"]


def test_the_control_of_a_grid_is_not_a_point_of_its_sweeps(tmp_path):
    grid = {"objective": ["ce", "emd"], "trainer.learning_rate": [1.0e-3, 2.0e-3]}
    rows = compared_rows(config_of(tmp_path, grid=grid, control="ce_times_1.3"))
    first, control, *_ = rows
    assert (control.name, control.reference) == ("ce_times_1.3", first.name)
    assert control.config.trainer["learning_rate"] == 1.0e-3
    assert [row.name for row in rows if not row.axes] == [control.name]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"objective": []}, r"grid\.objective: expected a list of values, or a mapping"),
        ({"objective": "ntl_was"}, r"grid\.objective: expected a list .* found 'ntl_was'\."),
        ({"objective": ["ntl_wass"]}, r"grid\.objective: there is no objective 'ntl_wass'\. Did"),
        (
            {"objective.balanse": ["x"]},
            r"grid, ntil_balanse_x: there is no setting 'balanse'\. Did you mean 'balance'",
        ),
        (
            {"objective.numeric_weight": [-1]},
            r"grid, ntil_numeric_weight_-1: numeric_weight must be >= 0",
        ),
        (
            {"objective.numeric_weight": [1, 1]},
            r"each row needs its own name; got \['ntil_numeric_weight_1', ",
        ),
        ({"objective.name": ["a"]}, r"'objective\.name' cannot be an axis"),
        ({"objective.terms": [[]]}, r"cannot be part of a name; write the axis as a mapping"),
        ({3: [1]}, r"grid: 3 is not a setting; write one, such as model\.digits\."),
        ({"modle.name": ["a"]}, r"ntil_name_a: there is no setting 'modle'\. Did you mean"),
        ({"model.atention": ["a"]}, r"model: there is no setting 'atention'\. Did you mean"),
        ({"model.dtype": ["int4"]}, r"grid, ntil_dtype_int4, model: dtype is one of"),
        ({"model.name": ["a/b"]}, r"'ntil_name_a/b' cannot be the name of a folder; choose"),
        ({"trainer.seed": [0, 1]}, r"'trainer\.seed' is the same for all rows; remove it\."),
        (
            {"data.test.synthetic.rows": [5]},
            r"'data\.test\.synthetic\.rows' is the same for all rows",
        ),
        ({"data.test": {"a": rows_for("clock", 5)}}, r"'data\.test' is the same for all rows"),
        (
            {"data": {"a": {"train": rows_for("clock", 5), "test": rows_for("clock", 5, 9)}}},
            r"'data\.test' is the same for all rows; do not change it\.",
        ),
        ({"compare.jobs": [1]}, r"'compare\.jobs' is the same for all rows"),
        ({}, r"objectives must name at least one preset if there is no grid"),
    ],
)
def test_a_wrong_grid_is_one_sentence(tmp_path, grid, message):
    with pytest.raises(ValueError, match=message) as caught:
        config_of(tmp_path, grid=grid)
    assert str(caught.value).startswith("clock_tiny.yaml, compare")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("with: [a]", r"objectives\.1\.with: expected settings"),
        (
            "with: {objective.numeric_weight: 1}",
            r"'objective\.numeric_weight' belongs to the objective",
        ),
        (
            "baseline: xval, with: {model.baseline: regression_head}",
            r"objectives\.1: baseline and with\.model\.baseline are both set; remove one\.",
        ),
        ("with: {trainer.output_dir: x}", r"'trainer\.output_dir' is the same for all rows"),
        (
            "with: {compare.warm_start.max_step: 1}",
            r"objectives\.1, compare\.warm_start: there is no",
        ),
    ],
)
def test_a_wrong_row_is_one_sentence(tmp_path, entry, message):
    with pytest.raises(ValueError, match=message):
        config_of(tmp_path, f"[ce, {{name: other, {entry}}}]")
