"""Old config keys and values are read for one release, with one warning that names the new one."""

import warnings

import pytest
import yaml
from tokens import TOKENIZER

from mm_numeric import NumberSpans, NumberVocabulary, ObjectiveSpec
from mm_numeric.comparison.rows import compared_rows
from mm_numeric.config.reader import config_from_dict, read_config
from mm_numeric.config.renamed import with_new_names
from mm_numeric.config.schema import Config
from mm_numeric.geometry.coordinates import COORDINATES, Coordinates
from mm_numeric.geometry.frames import Frame, View
from mm_numeric.losses.objective import objective
from mm_numeric.parsing import parse_yaml
from mm_numeric.registry import load
from mm_numeric.run_folder import claim, finish

BASE = """
task: clock
data: {train: {render: 5}, test: {render: 5, seed: 1}}
model: {name: tiny}
trainer: {output_dir: runs/mine}
"""

# The setting under its old name, the setting under its new name, and the pairs in the warnings.
CASES = [
    ("parts.vision=frozen", "modules.vision=frozen", ["parts is now modules"]),
    ("data.on_bad_picture=skip", "data.on_bad_image=skip",
     ["data.on_bad_picture is now data.on_bad_image"]),
    ("data.picture_cache=a", "data.image_cache=a",
     ["data.picture_cache is now data.image_cache"]),
    ("model.picture.side=64", "model.image_size.side=64",
     ["model.picture is now model.image_size"]),
    ("model.coordinates=pixels_seen", "model.coordinates=pixels_resized",
     ["model.coordinates: pixels_seen is now model.coordinates: pixels_resized"]),
    ("model.coordinates={preset: pixels_seen, decimals: 1}",
     "model.coordinates={preset: pixels_resized, decimals: 1}",
     ["model.coordinates.preset: pixels_seen is now model.coordinates.preset: pixels_resized"]),
    ("model.coordinates={layout: json}", "model.coordinates={format: json}",
     ["model.coordinates.layout is now model.coordinates.format"]),
    ("model.coordinates={top: 99}", "model.coordinates={max_value: 99}",
     ["model.coordinates.top is now model.coordinates.max_value"]),
    ("model.coordinates={space: seen}", "model.coordinates={space: resized}",
     ["model.coordinates.space: seen is now model.coordinates.space: resized"]),
    ("objective={name: a, preset: emd, numbers: all}",
     "objective={name: a, preset: emd, numbers_from: text}",
     ["objective.numbers: all is now objective.numbers_from: text"]),
    ("objective={name: a, preset: emd, numbers: marked}",
     "objective={name: a, preset: emd, numbers_from: task}",
     ["objective.numbers: marked is now objective.numbers_from: task"]),
    ("objective={name: a, preset: gce, thousands: true}",
     "objective={name: a, preset: gce, thousands_separators: true}",
     ["objective.thousands is now objective.thousands_separators"]),
]  # fmt: skip


def with_settings(*settings: str) -> dict:
    """Return a config as a file would have it, with some settings set."""
    raw = parse_yaml(BASE, "base")
    for setting in settings:
        path, _, text = setting.partition("=")
        *sections, key = path.split(".")
        at = raw
        for section in sections:
            at = at.setdefault(section, {})
        at[key] = yaml.safe_load(text)
    return raw


def written(folder, raw) -> str:
    """Write a config, and return the file."""
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    return str(path)


def caught(call) -> tuple[Config, list[str]]:
    """Return the result of a call and its warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = call()
    assert all(warning.category is FutureWarning for warning in found)
    return result, [str(warning.message) for warning in found]


def stored(raw) -> Config:
    return config_from_dict(raw, where="config.yaml", title="mine", stored=True)


@pytest.mark.parametrize(("old", "new", "changes"), CASES)
def test_an_old_name_in_a_file_gives_one_warning(tmp_path, old, new, changes):
    wanted, silent = caught(lambda: read_config(written(tmp_path, with_settings(new))))
    assert silent == []
    config, said = caught(lambda: read_config(written(tmp_path, with_settings(old))))
    assert said == [f"mine.yaml: {c}; the old name stops working in 0.3." for c in changes]
    assert config == wanted
    assert caught(lambda: stored(with_settings(old))) == (wanted, [])
    assert caught(lambda: stored(config.to_dict())) == (wanted, [])


@pytest.mark.parametrize(("old", "new", "changes"), CASES)
def test_an_old_name_in_an_override_gives_one_warning(tmp_path, old, new, changes):
    file = written(tmp_path, with_settings())
    config, said = caught(lambda: read_config(file, [old]))
    assert said == [f"{old}: {c}; the old name stops working in 0.3." for c in changes]
    assert config == read_config(file, [new])


@pytest.mark.parametrize(
    ("in_file", "override", "warned", "new"),
    [
        ("parts.vision=frozen", "modules.projector=frozen", ["mine.yaml"],
         "modules={vision: frozen, projector: frozen}"),
        ("modules.vision=frozen", "parts.projector=frozen", ["parts.projector=frozen"],
         "modules={vision: frozen, projector: frozen}"),
        ("parts.vision=frozen", "parts.vision=adapted",
         ["mine.yaml", "parts.vision=adapted"], "modules.vision=adapted"),
        ("objective={name: a, preset: emd, numbers: all}", "objective.numbers_from=task",
         ["mine.yaml"], "objective={name: a, preset: emd, numbers_from: task}"),
        ("objective={name: a, preset: emd, numbers_from: text}", "objective.numbers=marked",
         ["objective.numbers=marked"], "objective={name: a, preset: emd, numbers_from: task}"),
        ("model.coordinates={top: 99}", "model.coordinates.max_value=9", ["mine.yaml"],
         "model.coordinates={max_value: 9}"),
    ],
)  # fmt: skip
def test_a_file_and_an_override_may_use_different_names(tmp_path, in_file, override, warned, new):
    file = written(tmp_path, with_settings(in_file))
    config, said = caught(lambda: read_config(file, [override]))
    assert [message.partition(":")[0] for message in said] == warned
    assert config == read_config(written(tmp_path, with_settings(new)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("parts.vision=frozen", "modules.head=frozen"), "parts is the old name of modules"),
        (("model.coordinates={top: 9, max_value: 9}",),
         r"model.coordinates.top is the old name of model.coordinates.max_value; remove model.coo"),
        (("objective={numbers: all, numbers_from: text}",),
         "objective.numbers is the old name of objective.numbers_from"),
        (("objective={thousands: true, thousands_separators: true}",), "objective.thousands is"),
        (("compare={output_dir: a, objectives: [{numbers: all, numbers_from: text}]}",),
         r"compare.objectives.0.numbers is the old name of compare.objectives.0.numbers_from"),
        (("compare={output_dir: a, objectives: [{with: {parts.head: frozen, "
          "modules.head: frozen}}]}",), r"with: parts.head is the old name of modules.head"),
        (("compare={output_dir: a, grid: {parts.head: [frozen], modules.head: [frozen]}}",),
         "compare.grid: parts.head is the old name of modules.head"),
    ],
)  # fmt: skip
def test_a_setting_under_both_names_is_an_error(tmp_path, settings, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=f"mine.yaml.*{message}"):
            read_config(written(tmp_path, with_settings(*settings)))


COMPARE = """
output_dir: runs/compared
objectives:
- {preset: ntl_was, numbers: all}
- {name: mine, thousands: true, with: {parts.vision: frozen, model.coordinates: pixels_seen}}
- {baseline: regression_transformer, preset: ntl_was, numbers: all, with: {model.family: causal_lm}}
grid:
  objective: [ce, {preset: emd, numbers: marked}]
  objective.numbers: [marked, all]
  objective.thousands: {with: true}
  model.coordinates: [pixels_seen, unit_2]
  parts.vision: [null, frozen]
control: null
"""
NAMES = ["ntl_was_numbers_all", "mine", "regression_transformer_ntl_was_numbers_all"] + [
    f"{name}_numbers_{numbers}_with_coordinates_{coordinates}_vision_{vision}"
    for name in ("ce", "emd_numbers_marked")
    for numbers in ("marked", "all")
    for coordinates in ("pixels_seen", "unit_2")
    for vision in ("null", "frozen")
]


def test_a_comparison_keeps_the_names_of_its_rows(tmp_path):
    raw = {**with_settings(), "compare": yaml.safe_load(COMPARE)}
    config, said = caught(lambda: read_config(written(tmp_path, raw)))
    changes = [message.removeprefix("mine.yaml: ").partition(";")[0] for message in said]
    assert sorted(changes) == sorted(
        [
            "compare.objectives.0.numbers: all is now compare.objectives.0.numbers_from: text",
            "compare.objectives.1.thousands is now compare.objectives.1.thousands_separators",
            "compare.objectives.2.numbers: all is now compare.objectives.2.numbers_from: text",
            "parts is now modules",
            "model.coordinates: pixels_seen is now model.coordinates: pixels_resized",
            "compare.grid.objective.numbers: marked is now "
            "compare.grid.objective.numbers_from: task",
            "objective.numbers is now objective.numbers_from",
            "objective.numbers: marked is now objective.numbers_from: task",
            "objective.numbers: all is now objective.numbers_from: text",
            "objective.thousands is now objective.thousands_separators",
        ]
    )
    rows, silent = caught(lambda: compared_rows(config))
    assert silent == []
    assert [row.name for row in rows] == NAMES
    specs = {row.name: row.config.objective.spec for row in rows}
    assert specs["ntl_was_numbers_all"].numbers_from == "text"
    assert specs["mine"].thousands_separators
    assert rows[1].settings == {"modules.vision": "frozen", "model.coordinates": "pixels_resized"}
    last = rows[-1]
    assert (specs[last.name].numbers_from, last.config.modules.vision.how) == ("text", "frozen")
    assert rows[3].config.model.coordinates == "pixels_resized"
    again = config_from_dict(config.to_dict(), where="again", title="mine")
    assert again == config
    assert [row.name for row in compared_rows(again)] == NAMES


def test_an_objective_keeps_the_name_that_its_old_keys_gave_it(tmp_path):
    raw = {**with_settings(), "objective": {"preset": "ntl_was", "numbers": "all"}}
    with pytest.warns(FutureWarning, match="numbers_from"):
        config = read_config(written(tmp_path, raw), ["objective.weight=0.8"])
    assert config.objective.name == "ntl_was_numbers_all_weight_0.8"
    with pytest.warns(FutureWarning, match="numbers_from"):
        config = read_config(written(tmp_path, with_settings()), ["objective.numbers=all"])
    assert config.objective.name == "ce_numbers_all"


def test_the_new_names_give_new_row_names(tmp_path):
    raw = {**with_settings(), "objective": {"preset": "ntl_was", "numbers_from": "text"}}
    assert read_config(written(tmp_path, raw)).objective.name == "ntl_was_numbers_from_text"


def test_a_run_with_old_names_is_claimed_under_old_and_new_names(tmp_path):
    """A resumed run has a config.yaml with old keys; the user's file has old or new ones."""
    settings = [old for old, _, _ in CASES if not old.startswith(("objective", "model.coord"))]
    old = with_settings(*settings, "objective={preset: emd, numbers: all}")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("# Written\n" + yaml.safe_dump(old), encoding="utf-8")
    (folder / "checkpoint-1").mkdir()
    finish(folder, {})
    config, said = caught(lambda: read_config(written(tmp_path, old)))
    assert len(said) == 5
    assert caught(lambda: claim(folder, config)) == (True, [])
    again = config_from_dict(config.to_dict(), where="new", title="mine")
    assert caught(lambda: claim(folder, again)) == (True, [])


def test_old_names_in_a_stored_frame_are_silent():
    view = View(100, 50, 1.0, 1.0)
    frame = Frame(100, 50, view, COORDINATES["pixels_resized"])
    raw = frame.to_dict()
    assert raw["coordinates"]["space"] == "resized"
    old = {"space": "seen", "layout": "qwen_vl", "top": 1000}
    found, said = caught(lambda: Frame.from_dict({**raw, "coordinates": old}))
    assert said == []
    assert found.coordinates == COORDINATES["qwen2_vl"]


def test_old_arguments_work_with_a_warning():
    vocabulary = NumberVocabulary.from_tokenizer(TOKENIZER)
    made, said = caught(lambda: objective("ntl_was", vocabulary, thousands=True, numbers="all"))
    assert (
        made.spec
        == objective("ntl_was", vocabulary, thousands_separators=True, numbers_from="text").spec
    )
    assert said == [
        "objective: thousands=True is now thousands_separators=True; the old name stops "
        "working in 0.3.",
        "objective: numbers='all' is now numbers_from='text'; the old name stops working in 0.3.",
    ]
    with pytest.warns(FutureWarning, match="layout='json' is now format='json'"):
        assert Coordinates(layout="json") == Coordinates(format="json")
    with pytest.warns(FutureWarning, match="top=9 is now max_value=9"):
        assert Coordinates(top=9).max_value == 9
    with pytest.raises(ValueError, match="numbers is the old name of numbers_from; pass one"):
        ObjectiveSpec(numbers="all", numbers_from="text")


def test_from_labels_accepts_its_old_argument():
    import torch

    vocabulary = NumberVocabulary.from_tokenizer(TOKENIZER)
    labels = torch.tensor([TOKENIZER.ids("1,234")])
    with pytest.warns(FutureWarning, match="thousands=True is now thousands_separators=True"):
        spans = NumberSpans.from_labels(labels, vocabulary, thousands=True)
    assert spans.value.tolist() == [1234]


def test_classes_of_terms_load_by_their_old_paths():
    with pytest.warns(FutureWarning, match="write mm_numeric.losses.terms.expected_distance:Exp"):
        found = load("mm_numeric.losses.distance:ExpectedDistance", "mine.yaml")
    assert found is load("mm_numeric.losses.terms.expected_distance:ExpectedDistance", "mine.yaml")


def test_settings_that_are_not_mappings_are_left_to_the_reader():
    raw = {"objective": 3, "compare": {"objectives": 7, "grid": {7: [1], "a.b": 2}}, "model": []}
    assert with_new_names(raw, "mine.yaml") == raw
