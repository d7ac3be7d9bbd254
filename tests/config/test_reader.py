"""Configs are read strictly, and what ``check`` prints is the same config."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from synthetic_rows import rows_for

from mm_numeric.comparison.rows import compared_rows
from mm_numeric.config.data import DataSource
from mm_numeric.config.reader import (
    CONFIGS,
    config_from_dict,
    find_config,
    read_config,
    with_overrides,
    with_trainer,
)
from mm_numeric.families.prompts import FAMILY_PROMPTS, FORMAT_PROMPTS
from mm_numeric.geometry.click_formats import ClickFormat
from mm_numeric.geometry.coordinates import COORDINATE_FORMATS
from mm_numeric.losses.presets import PRESETS
from mm_numeric.registry import TERMS
from mm_numeric.settings import parse_yaml, with_override
from mm_numeric.synthetic.clock_faces import Clocks
from mm_numeric.tasks.clock import Clock

SHIPPED = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
EXPERIMENTS = sorted(
    path
    for path in (Path(__file__).parents[2] / "scripts" / "experiments").glob("*.yaml")
    if not re.search(r"^# .* runs under commit \b", path.read_text(encoding="utf-8"), re.MULTILINE)
)
"""The configs that this commit can run, without those of losses that have been removed."""
_TRAINED = ("task", "data", "model", "trainer")
SMALL = """\
task: clock
data: {train: {synthetic: {name: clocks, rows: 5}}, test: {path: test.csv}}
model: {name: tiny}
trainer: {output_dir: runs/small}
"""


def small(*overrides):
    """Return a config with nothing but what must be there, and some overrides."""
    raw = parse_yaml(SMALL, "small.yaml")
    for override in overrides:
        raw = with_override(raw, override)
    return config_from_dict(raw, where="small.yaml", title="small")


def again(config):
    """Return the config that is read from what ``check`` prints."""
    raw = parse_yaml(config.to_yaml(), "printed")
    return config_from_dict(raw, where="printed", title=config.title)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_config_reads_and_reads_back(name):
    config = read_config(name)
    assert config.title == name
    assert again(config) == config
    assert config.to_dict() == again(config).to_dict()


def test_an_override_of_the_kind_of_a_source_replaces_the_other_kinds():
    config = read_config("clock_tiny", ["data.train.path=a.jsonl", "data.test.dataset=org/clocks"])
    assert (config.data.train.path, config.data.train.synthetic) == ("a.jsonl", None)
    assert (config.data.test.dataset, config.data.test.synthetic) == ("org/clocks", None)
    overrides = ["data.train.synthetic={name: clocks}", "data.train.synthetic.rows=5"]
    overrides += ["data.train.images=own"]
    raw = {"data": {"train": {"dataset": "d", "split": "val", "boxes": "xyxy", "weight": 2}}}
    changed = with_overrides(raw, overrides)["data"]["train"]
    assert changed == {"weight": 2, "synthetic": {"name": "clocks", "rows": 5}, "images": "own"}
    two = {"data": {"train": [rows_for("clock", 5)]}}
    several = with_overrides(two, ["data.train.0.path=a"])
    assert several["data"]["train"] == [{"path": "a"}]
    both = ["data.train.path=a.jsonl", "data.train.synthetic.rows=5"]
    with pytest.raises(ValueError, match=r"data\.train: set exactly one of path"):
        read_config("clock_tiny", both)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_config_has_its_command_in_the_header(name):
    header = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8").partition("\n\n")[0]
    assert re.search(rf"mm.numeric (train|compare) {name}\b", header)
    for line in re.sub(r"\\\n# *", "", header).splitlines():
        command = line.lstrip("# ").split("  ")[0]
        if re.match("mm-numeric (train|compare) ", command):
            _, _, config, *overrides = shlex.split(command)
            assert read_config(config, overrides).title == name


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_experiment_trains_as_the_config_that_it_names(path):
    config, header = read_config(str(path)), path.read_text(encoding="utf-8").partition("\n\n")[0]
    assert compared_rows(config)
    assert f"mm-numeric compare scripts/experiments/{path.name}\n" in header
    assert config.compare.output_dir == f"runs/{path.stem}"
    found = re.search(r"configs/(\w+)\.yaml\.", header)
    if found is None:  # such as the model of a script, which no shipped config trains
        return
    named = read_config(found[1])
    own, its = config.to_dict(), named.to_dict()
    for found in (own, its):
        found["trainer"].pop("output_dir")
        for name in ("noise_minutes", "noise_pixels"):
            found["data"]["train"]["synthetic"].pop(name, None)
    tests = [found["data"]["test"]["synthetic"] for found in (own, its)]
    if config.compare.hypotheses:  # fresh test rows
        first, second = (found.pop("seed") for found in tests)
        assert first != second
    if path.stem == "location_tokens_detection":  # a warm start and two times the test rows
        own["trainer"]["max_steps"] += own["compare"]["warm_start"]["max_steps"]
        own["trainer"]["warmup_steps"] = own["compare"]["warm_start"]["warmup_steps"]
        assert tests[0].pop("rows") == 2 * tests[1].pop("rows")
    assert {k: own[k] for k in _TRAINED} == {k: its[k] for k in _TRAINED}
    if its["compare"] is None:  # the config has no warm start of its own
        return
    starts = [found["compare"]["warm_start"] for found in (own, its)]
    assert starts[0] == starts[1]


def test_there_are_configs_to_test():
    assert "clock_tiny" in SHIPPED
    assert len(EXPERIMENTS) >= 6


def test_defaults_are_filled_in():
    config = small()
    assert config.objective.name == "ce"
    assert config.objective.spec == PRESETS["ce"]
    assert config.task == Clock()
    assert config.data.train == DataSource(synthetic=Clocks(rows=5))
    assert config.model.family == "qwen2_vl"
    assert config.predict.batch_size == 64
    assert config.compare is None
    assert config.output_dir == Path("runs/small")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_reads_back(preset):
    config = small(f"objective={preset}")
    assert config.objective.spec == PRESETS[preset]
    assert again(config) == config


@pytest.mark.parametrize("term", TERMS)
def test_every_term_reads_back(term):
    config = small(
        f"objective={{name: mine, terms: [{{name: {term}, weight: 2}}], numeric_weight: 1.0e-7}}"
    )
    assert config.objective.name == "mine"
    assert config.objective.spec.terms[0].weight == 2.0
    assert again(config) == config


def test_roles_and_a_matrix_read_back():
    config = small(
        "objective={terms: [{name: ntl_was, roles: {x: 2, y: 0.5}, options: {cost: [[0, 1.5], "
        "[2, 0]]}}], numbers: all, ce_tokens: text, thousands_separators: true, balance: running}"
    )
    term = config.objective.spec.terms[0]
    assert term.roles == {"x": 2, "y": 0.5}
    assert term.options == {"cost": [[0, 1.5], [2, 0]]}
    assert again(config) == config


def test_overrides_reach_every_part():
    config = read_config(
        "clock_tiny",
        [
            "objective.numeric_weight=0.8",
            "objective.terms=[{name: emd}]",
            "objective.terms.0.weight=3",
            "compare.seeds.1=7",
            "compare.warm_start.max_steps=9",
            "data.train.synthetic.size_px=64",
            "data.test={path: a.csv}",
        ],
    )
    assert config.objective.name == "ntil_numeric_weight_0.8_terms"
    assert config.objective.spec.numeric_weight == 0.8
    assert config.objective.spec.balance == "ratio"
    assert [(t.name, t.weight) for t in config.objective.spec.terms] == [("emd", 3.0)]
    assert config.compare.seeds == (0, 7)
    assert config.compare.warm_start["max_steps"] == 9
    assert config.data.train.synthetic.size_px == 64
    assert config.data.test == DataSource(path="a.csv")
    assert again(config) == config


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\ufeff"), max_size=20)
POSITIVE = st.floats(min_value=0, max_value=1e300, allow_subnormal=True)


@pytest.mark.slow
@given(
    prompt=TEXT,
    noise=st.floats(0, 360),
    rate=POSITIVE,
    weights=st.lists(POSITIVE, min_size=3, max_size=3),
    lam=POSITIVE,
    seeds=st.lists(st.integers(0, 2**40), min_size=1, max_size=4, unique=True),
)
@examples(25)
def test_whatever_is_set_reads_back(prompt, noise, rate, weights, lam, seeds):
    config = read_config(
        "clock_tiny", [f"objective.numeric_weight={yaml_number(lam)}", f"compare.seeds={seeds}"]
    )
    terms = tuple(
        replace(term, weight=weight)
        for term, weight in zip(config.objective.spec.terms, weights, strict=True)
    )
    spec = replace(config.objective.spec, terms=terms)
    config = with_trainer(config, learning_rate=rate, run_name=prompt)
    config = replace(
        config,
        task=replace(config.task, prompt=prompt),
        data=replace(config.data, train=DataSource(synthetic=Clocks(noise_minutes=noise))),
        objective=replace(config.objective, spec=spec),
    )
    assert config.objective.spec.numeric_weight == lam
    assert again(config) == config


def yaml_number(number):
    """Write a number as an override does."""
    return yaml.safe_dump(number).splitlines()[0]


def read_with_rows(override):
    config = small(override)
    if config.compare:
        compared_rows(config, "small.yaml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dta=1", r"^small\.yaml: there is no setting 'dta'\. Did you mean 'data'\?"),
        ("task={prompt: a}", r"task\.name: name a task\. Known: .*clock, .*detection, .*"),
        ("task=7", r"task\.name: name a task\."),
        ("task=os:nothing", r"'os:nothing' cannot be imported \(module 'os' has no"),
        ("task=':C'", r"task\.name: ':C' cannot be imported"),
        ("task='.a:C'", r"task\.name: '\.a:C' cannot be imported"),
        ("task=os:path", r"task\.name: 'os:path' is not a dataclass\."),
        ("task=collections:Counter", r"'collections:Counter' is not a dataclass\."),
        (
            "data.train.synthetic.noise_minutes=400",
            r"data\.train\.synthetic: noise_minutes is 0 to 360, not 400\.0\.",
        ),
        ("data.train.synthetic.noise_minutes=.nan", r"noise_minutes: nan is not a number"),
        ("data.train.synthetic.size_px=8", r"train\.synthetic: size_px must be at least 16"),
        (
            "data.train.synthetic.seed=a",
            r"small\.yaml, data\.train\.synthetic\.seed: 'a' is not a whole number\.",
        ),
        ("data.trian.seed=1", r"data: there is no setting 'trian'\. Did you mean 'train'\?"),
        ("data.train={}", r"data\.train: set exactly one of path .* and synthetic"),
        ("data.train.synthetic.rows=0", r"train\.synthetic: rows must be at least 1, not 0\."),
        ("predict.batch_size=0", r"predict: batch_size must be at least 1, not 0\."),
        ("predict.decode={risk: iou}", r"decode is a rule or \{for: RISK\}, such as .*not"),
        ("predict.mass=1.5", r"predict: mass is a probability above 0 and at most 1, not 1\.5"),
        ("predict.branches=0", r"predict: branches must be at least 1, not 0\."),
        ("predict.samples=0", r"predict: samples must be at least 1, not 0\."),
        ("evaluate={every_steps: 1, decode: meen}", r"evaluate: .*Did you mean 'mean'\?"),
        ("predict.max_new_tokens=-1", r"predict: max_new_tokens must be at least 1, not -1\."),
        ("data.test=a.csv", r"data\.test: expected settings \(path, dataset, subset, split"),
        ("model={}", r"small\.yaml, model: the setting 'name' is missing\."),
        ("objective=null", r"objective: name a preset \(ce, .*\) or use a mapping\."),
        ("objective=os:path", r"objective: 'os:path' is not an ObjectiveSpec\."),
        (
            "objective.numeric_weigth=1",
            r"objective: there is no setting 'numeric_weigth'\. Did you mean 'numeric_weight'",
        ),
        ("objective.numeric_weight=.nan", r"objective\.numeric_weight: nan is not a number\."),
        (
            "objective.numeric_weight=1e-1",
            r"objective\.numeric_weight: '1e-1' is not a number\. .* write 0\.1\.",
        ),
        ("objective.reduction=x", r"reduction is one of items, samples, not 'x'\."),
        ("objective.terms=[{name: emd}, {name: emd}]", r"terms must be different, and ce is"),
        (
            "objective.numeric_weight=.inf",
            r"objective: numeric_weight must be >= 0 and finite, not ",
        ),
        ("objective.terms=[{name: emd, weight: .inf}]", r"terms\.0: weight .* finite, not inf\."),
        (
            "objective.terms=[{name: emd, roles: {hours: 2}}]",
            r"terms\.0: roles of the term emd: there is no role 'hours'\. Did you mean 'hour'\?",
        ),
        ("objective.terms=[{name: emd, roles: {on: 2}}]", r"there is no role True\. Known: free,"),
        ("objective.terms=[{name: emd, roles: {x: -1}}]", r"roles\.x must be .* finite, not -1\."),
        ("objective.terms=[{name: emd, roles: {x: .nan}}]", r"roles\.x must be .*, not nan\."),
        ("objective.terms=[{name: emd, roles: {x: on}}]", r"roles\.x must be .*, not True\."),
        ("objective.terms=[{name: emd, roles: [x]}]", r"terms\.0\.roles: expected settings as"),
        (
            "objective={digit_runs: true, terms: [{name: emd, roles: {x: 2}}]}",
            r"objective: digit_runs reads label ids, which have no roles;",
        ),
        (
            "objective={digit_runs: true, thousands_separators: true}",
            r"turn off digit_runs or thousands_separators\.",
        ),
        ("objective.numbers=some", r"objective: numbers is one of task, all, not 'some'\."),
        ("objective.ce_tokens=none", r"objective: ce_tokens is one of all, text, not 'none'\."),
        ("trainer={}", r"trainer\.output_dir: set the folder of the run\."),
        ("predict=false", r"predict: expected settings"),
        ("compare=false", r"compare: expected settings"),
        ("compare={}", r"compare: the setting 'output_dir' is missing\."),
        ("compare={output_dir: x, seeds: []}", r"seeds must be different whole numbers"),
        ("compare={output_dir: x, seeds: [1, 1]}", r"seeds must be different whole numbers"),
        ("compare={output_dir: x, seeds: [1, a]}", r"compare\.seeds\.1: 'a' is not a whole"),
        ("compare={output_dir: x, objectives: []}", r"objectives must name at least one preset"),
        ("compare={output_dir: x, jobs: 0}", r"jobs must be at least 1, not 0\."),
        ("compare={output_dir: x, control: y}", r"compare\.control: there is no objective 'y'"),
        ("compare={output_dir: x, objectives: [ce, y]}", r"compare\.objectives\.1: there is no"),
        ("compare={output_dir: x, objectives: [ce, ce]}", r"each row needs its own name; got"),
        (
            "compare={output_dir: x, objectives: [{preset: emd, name: warm_start}]}",
            r"compare: 'warm_start' cannot be the name of a folder; choose another name",
        ),
        ("compare={output_dir: x, objectives: [{name: a/b}]}", r"'a/b' cannot be the name"),
        ("compare={output_dir: x, warm_start: {a: 1}}", r"compare\.warm_start: there is no"),
    ],
)
def test_a_wrong_setting_is_one_sentence(override, message):
    """Those that users get wrong most often are in tests/test_mistakes.py."""
    with pytest.raises(ValueError, match=message) as caught:
        read_with_rows(override)
    assert str(caught.value).startswith("small.yaml")
    assert "\n" not in str(caught.value)
    assert ".." not in str(caught.value)


def test_compared_rows_put_the_control_after_the_first():
    config = small(
        "compare={output_dir: x, objectives: [emd, {name: mine, numeric_weight: 0.0}, ce]}"
    )
    found = compared_rows(config)
    assert [row.name for row in found] == ["emd", "ce_times_1.3", "mine", "ce"]
    assert found[2].config.objective.spec == replace(PRESETS["ce"], numeric_weight=0.0)
    without = small("compare={output_dir: x, objectives: [emd, ce], control: null}")
    assert [row.name for row in compared_rows(without)] == ["emd", "ce"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clock_tiney", r"there is no config 'clock_tiney'\. Did you mean 'clock_tiny'\?"),
        ("mine.yaml", r"mine\.yaml: there is no such file\. Shipped configs: .*clock_qwen2_vl"),
        ("folder/mine", r"folder/mine: there is no such file\."),
        ("", r"there is no config ''"),
    ],
)
def test_a_config_that_is_not_there(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        find_config(name)


def test_a_file_is_read_and_named_in_errors(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(SMALL, encoding="utf-8")
    assert read_config(path).title == "mine"
    path.write_text(SMALL + "task: clock\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"mine\.yaml, line 5: the key 'task' appears twice\."):
        read_config(path)


@dataclass(frozen=True, kw_only=True)
class MyTask(Clock):
    """A task of someone else's."""

    depth: int = 1


def test_a_task_of_your_own(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "my_package", type(sys)("my_package"))
    monkeypatch.setattr(sys.modules["my_package"], "MyTask", MyTask, raising=False)
    config = small("task={name: 'my_package:MyTask', depth: 3}")
    assert config.task == MyTask(depth=3)
    assert config.task_name == "my_package:MyTask"
    assert again(config) == config
    with pytest.raises(ValueError, match=r"task: there is no setting 'detph'\. Did you mean 'dep"):
        small("task={name: 'my_package:MyTask', detph: 3}")


def test_reading_loads_no_torch():
    code = (
        "import sys; from mm_numeric.config.reader import read_config; read_config('clock_tiny');"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("family", "prompt"), [("paligemma", "detect {phrase}"), ("yi_vl", "Locate: {phrase}")]
)
def test_a_prompt_that_is_not_given_is_the_family_s_habit(tmp_path, family, prompt):
    raw = {
        "task": "grounding",
        "data": {"train": {"path": "a.jsonl"}, "test": {"path": "a.jsonl"}},
        "model": {"name": "tiny", "family": family},
        "trainer": {"output_dir": str(tmp_path)},
    }
    assert config_from_dict(raw, where="a", title="a").task.prompt == prompt
    raw["task"] = {"name": "grounding", "prompt": "Find {phrase}"}
    assert config_from_dict(raw, where="a", title="a").task.prompt == "Find {phrase}"


@pytest.mark.parametrize("name", FORMAT_PROMPTS)
def test_a_prompt_that_is_not_given_is_that_of_the_coordinate_format(tmp_path, name):
    preset = "rex_omni" if name == "rex_omni" else {"preset": "qwen3_vl", "format": name}
    raw = {
        "task": "click",
        "data": {"train": {"path": "a.jsonl"}, "test": {"path": "a.jsonl"}},
        "model": {"name": "tiny", "family": "qwen3_vl", "coordinates": preset},
        "trainer": {"output_dir": str(tmp_path)},
    }
    prompt = config_from_dict(raw, where="a", title="a").task.prompt
    assert prompt == FORMAT_PROMPTS[name]["click"]["prompt"]
    if "<tools>" in prompt:
        tool = json.loads(prompt.partition("<tools>\n")[2].partition("\n")[0])
        written = COORDINATE_FORMATS[name].nothing.partition("\n")[2].partition("\n")[0]
        assert json.loads(written)["name"] == tool["function"]["name"] == name
    raw["task"] = {"name": "click", "prompt": "Tap {phrase}"}
    assert config_from_dict(raw, where="a", title="a").task.prompt == "Tap {phrase}"
    raw["task"], raw["model"]["coordinates"] = "grounding", "qwen3_vl"
    habit = FAMILY_PROMPTS["qwen3_vl"]["grounding"]["prompt"]
    assert config_from_dict(raw, where="a", title="a").task.prompt == habit


def test_each_format_of_clicks_has_its_prompt():
    clicks = {name for name, text in COORDINATE_FORMATS.items() if isinstance(text, ClickFormat)}
    assert {name for name in FORMAT_PROMPTS if name != "rex_omni"} == clicks
