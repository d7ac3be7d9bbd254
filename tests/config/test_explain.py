"""Settings are explained in words: type, default and meaning, from the code that reads them."""

import pytest

from mm_numeric.cli import main as cli
from mm_numeric.config.explain import SECTIONS, explain
from mm_numeric.config.reader import read_config
from mm_numeric.config.trainer_settings import trainer_settings


def keys(value, at=""):
    """Return the dotted paths of all settings of a config."""
    if isinstance(value, list):
        return {key for item in value for key in keys(item, at)}
    if not isinstance(value, dict) or not value:
        return {at}
    return {key for name, item in value.items() for key in keys(item, f"{at}.{name}".lstrip("."))}


def test_a_setting_of_the_trainer(capsys):
    assert cli.main(["check", "--explain", "trainer.learning_rate"]) == 0
    assert capsys.readouterr().out == (
        "trainer.learning_rate\n"
        "  type:    number\n"
        "  default: 5.0e-05\n"
        "  meaning: The initial learning rate for the optimizer.\n"
    )
    assert "  default: none\n" in explain("trainer.report_to")  # ours, not that of transformers
    assert "  default: chosen by the machine\n" in explain("trainer.use_cpu")
    assert "Only 0 can be used here, for the objective is the loss." in " ".join(
        explain("trainer.label_smoothing_factor").split()
    )


@pytest.mark.parametrize("key", ["lr", "trainer.lr"])
def test_the_name_of_another_trainer(key):
    with pytest.raises(ValueError, match=r"'trainer\.learning_rate'\? Nearest of \d+: trainer\.le"):
        explain(key)


def test_a_section_and_a_source_of_a_list():
    for key in ("data.train", "data.train.0"):
        text = explain(key)
        assert text.startswith("data.train\n  type:    list of DataSource or DataSource\n")
        assert "\ndata.train.path = null: A .jsonl, .jsonl.gz, .json or .csv file, a " in text
        assert "\ndata.train.synthetic: name, rows, seed, " in text
    names = " ".join(explain("trainer").split()).partition(" Explain ")[0]
    assert names.removeprefix("trainer: ").split(", ") == list(trainer_settings())
    assert all(len(line) <= 100 for line in explain("task.prompt").splitlines())
    assert "task.prompt (task clock)\n  type:    text\n" in explain("task.prompt")
    assert "\ntask (task click): scorer, prompt\n" in explain("task")


@pytest.mark.parametrize("section", [*SECTIONS, "data.train", "evaluate.data", "task", "trainer"])
def test_a_section_is_explained_on_one_screen(section):
    lines = explain(section.replace("NAME", "vision").partition(",")[0]).splitlines()
    assert len(lines) <= 40
    assert all(len(line) <= 100 for line in lines)


def test_every_setting_of_a_config_is_explained():
    config = read_config("clock_tiny", ["modules={vision: frozen, language: adapted}"]).to_dict()
    named = {"task.name", "objective.name", "compare.objectives.name", "objective.terms.roles"}
    config["modules"] = {k: v for k, v in config["modules"].items() if v}
    for section in ("task", "modules", "data", "model", "lora", "objective", "predict", "trainer"):
        for key in keys(config[section], section) - named:
            assert "meaning: " in explain(key), key


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("trainer.learning_rat", "Did you mean 'trainer.learning_rate'?"),
        ("learning_rate", "Nearest of "),
        ("learnrate.x", "Nearest of "),
    ],
)
def test_an_unknown_setting_names_the_nearest(key, near, capsys):
    assert cli.main(["check", "--explain", key]) == 2
    assert f"--explain: there is no setting '{key}'. " in (err := capsys.readouterr().err)
    assert near in err


def test_names_are_resolved_also_in_the_rows_of_a_comparison(capsys):
    """``train`` would find these mistakes only after the seconds that it takes to import torch."""
    for override, message in {
        'model.family="os:sep"': "model.family: 'os:sep' is not a subclass of mm_numeric.families.",
        'model.baseline="os:sep"': "model.baseline: 'os:sep' is not a subclass of mm_numeric.base",
        'predict.decode={for: "os:sep"}': "predict.decode.for: 'os:sep' is not a Risk; it is a str",
        "objective.terms=[{name: gce, options: {sigmaa: 1}}]": "Did you mean 'sigma'?",
        "compare.objectives=[ce, {name: a, terms: [{name: gce, options: {s: 1}}]}]": "setting 's'",
        'compare.objectives=[ce, {name: a, with: {model.family: "os:sep"}}]': "is not a subclass",
    }.items():
        assert cli.main(["check", "clock_tiny", override]) == 2, override
        assert message in capsys.readouterr().err
