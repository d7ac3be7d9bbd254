"""Every baseline: training, saving, loading, prediction, scoring, comparison, and errors."""

import dataclasses
import functools
import json
import random
import shutil

import pytest
import torch
from baseline_runs import FAMILIES, ONE_NUMBER, TASK, TOKENIZERS, baseline_config, family_of, fitted
from sums import Sums
from tiny_models import TINY, examples_of, tiny_folder

from mm_numeric.comparison.rows import compared_rows
from mm_numeric.comparison.run import compare
from mm_numeric.config.reader import config_from_dict
from mm_numeric.data.collator import make_collator
from mm_numeric.evaluation.check_data.check import check_data
from mm_numeric.evaluation.check_data.text import report_text
from mm_numeric.evaluation.report.report import write_report
from mm_numeric.evaluation.score import score
from mm_numeric.families.causal_lm import CausalLM
from mm_numeric.inference.generate import generate, predict
from mm_numeric.models.export import export
from mm_numeric.models.loading import load_family, load_model
from mm_numeric.registry import BASELINES
from mm_numeric.runs.folder import last_checkpoint
from mm_numeric.training.run import train
from mm_numeric.training.setup import make_trainer, training_arguments

pytestmark = pytest.mark.slow

each_baseline = pytest.mark.parametrize("baseline", BASELINES)
each_family = pytest.mark.parametrize("kind", FAMILIES)
each_tokenizer = pytest.mark.parametrize("kind", [*FAMILIES, *TOKENIZERS])


@each_tokenizer
@pytest.mark.parametrize("baseline", ["regression_transformer", "xval"])
def test_answers_come_back(kind, baseline, tmp_path):
    family, draw = fitted(kind, baseline, tmp_path), random.Random(0)
    vocabulary = family.vocabulary()
    largest = 500 if baseline == "xval" else 20_000  # its values are float32
    for _ in range(50):
        values = [round(draw.uniform(-largest, largest), draw.randint(0, 3)) for _ in range(3)]
        text = " and ".join(f"{value:.10g}" for value in values)
        answer = family.answer(text)
        assert family.text(answer.ids) == text
        if baseline == "regression_transformer":  # finds numbers as other families do
            continue
        found = family.numbers(text, (), answer, vocabulary)
        assert [number.sign for number in found] == [-1 if value < 0 else 1 for value in values]
        assert [number.value for number in found] == pytest.approx(values)
    assert family.text(family.answer("(-5) 3-4").ids) == "(-5) 3-4"


def lines(file):
    return [json.loads(line) for line in file.open()]


def losses(run):
    return [line["loss"] for line in lines(run / "log.jsonl") if "loss" in line]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the config of a finished run of a family with a baseline."""

    @functools.cache
    def make(kind, baseline):
        folder = tmp_path_factory.mktemp(f"{kind}_{baseline}")
        config = baseline_config(folder, kind, baseline, max_steps=50, save_strategy="no")
        train(config)
        return config

    return make


@pytest.mark.parametrize(
    ("kind", "baseline"), [*(("causal_lm", each) for each in BASELINES), ("t5", "regression_head")]
)
def test_training_lowers_the_error_and_the_answers_are_scored(trained, kind, baseline):
    run = trained(kind, baseline).output_dir
    assert losses(run)[-1] < 0.4 * losses(run)[0]
    assert predict(run, None, run / "predictions.jsonl") == len(ONE_NUMBER)
    found = lines(run / "predictions.jsonl")
    errors = [abs(float(row["text"]) - float(row["target"])) for row in found]
    assert sum(errors) / len(errors) < 20  # of the answers from their mean: 42
    scores = score(run / "predictions.jsonl")
    assert not scores.failures


@each_baseline
@each_family
def test_what_is_saved_answers_the_same(tmp_path, kind, baseline):
    config = baseline_config(tmp_path, kind, baseline, max_steps=2)
    args, examples = training_arguments(config), examples_of(config)
    family = family_of(kind, baseline)
    collator = make_collator(config, family)
    trainer = make_trainer(config, args, examples, collator, tiny_folder(kind))
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    family.save(tmp_path / "saved")
    model = trainer.model.eval()
    before = list(generate(model, family, examples, 8))
    again = load_family(config, str(tmp_path / "saved"))
    loaded = load_model(config, again, str(tmp_path / "saved")).eval()
    assert again.fitted == family.fitted
    state, theirs = model.state_dict(), loaded.state_dict()
    assert state.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in state.items())
    for parameter in loaded.parameters():  # in memory of its own: a file's may be aligned otherwise
        parameter.data = parameter.data.clone()
    after = list(generate(loaded, again, examples, 8))
    assert [g.text for g in before] == [g.text for g in after]
    assert [list(g.ids) for g in before] == [list(g.ids) for g in after]
    if baseline in ("regression_head", "xval"):
        assert any(name.startswith("baseline.") for name in state)


@each_baseline
def test_answers_do_not_depend_on_the_batch(trained, baseline):
    """Questions of different lengths are padded on the left."""
    config = trained("causal_lm", baseline)
    examples, folder = examples_of(config), str(config.output_dir / "model")
    family = load_family(config, folder)
    model = load_model(config, family, folder).eval()
    together = [g.text for g in generate(model, family, examples, 8)]
    alone = [next(iter(generate(model, family, [example], 8))).text for example in examples]
    assert together == alone


@each_baseline
def test_accumulated_micro_batches_are_one_batch(tmp_path, baseline):
    """The counts are those of the whole step."""
    found = []
    for rows, name in ((7, "whole"), (2, "parts")):
        folder = tmp_path / name
        folder.mkdir()
        config = baseline_config(
            folder, "t5", baseline, max_steps=2, per_device_train_batch_size=rows, logging_steps=1,
            gradient_accumulation_steps=1 if rows == 7 else 4, save_strategy="no",
        )  # fmt: skip
        train(config)
        found.append(losses(config.output_dir))
    assert found[0] == pytest.approx(found[1], rel=1e-4)


@each_baseline
def test_a_resumed_run_ends_where_one_in_one_piece_does(tmp_path, baseline):
    config = baseline_config(
        tmp_path, "causal_lm", baseline, max_steps=2, save_steps=1, logging_steps=1
    )
    train(config)
    run = config.output_dir
    whole = losses(run)
    for path in (run / "run.json", run / "model" / "model.safetensors"):
        path.unlink()
    newest = last_checkpoint(run)
    assert newest.name == "checkpoint-2"
    (newest / "manifest.json").unlink()
    train(config, resume=True)
    assert losses(run) == pytest.approx(whole, rel=1e-5)


def test_another_baseline_or_none_is_rejected(trained, tmp_path):
    config = trained("causal_lm", "regression_head")
    model = str(config.output_dir / "model")
    for baseline, why in (
        (None, "was trained as regression_head, not as None"),
        ("xval", "was trained as regression_head, not as xval"),
        ({"name": "regression_head", "log": True}, "was trained with False, and here it is True"),
    ):
        changed = dataclasses.replace(
            config, model=dataclasses.replace(config.model, baseline=baseline)
        )
        with pytest.raises(ValueError, match=why):
            load_family(changed, model)
    with pytest.raises(ValueError, match="a model of regression_head cannot be exported"):
        export(config.output_dir, tmp_path / "out")


def test_a_plain_checkpoint_that_lacks_weights_is_still_rejected(tmp_path):
    CausalLM.make_tiny(tmp_path, seed=0)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "n_layer": 3}))
    family = family_of("causal_lm", "xval")
    family.fitted = {}
    with pytest.raises(ValueError, match=r"lacks 12 weights \("):
        family.load_model(str(tmp_path), TINY)


def test_weights_of_a_baseline_that_are_gone_are_not_drawn_anew(trained, tmp_path):
    config = trained("causal_lm", "regression_head")
    model = shutil.copytree(config.output_dir / "model", tmp_path / "model")
    plain = CausalLM.load(tiny_folder("causal_lm"), TINY).load_model(tiny_folder("causal_lm"), TINY)
    kept = (model / "config.json").read_text()
    plain.save_pretrained(model)
    (model / "config.json").write_text(kept)
    with pytest.raises(ValueError, match=r"lacks 2 weights \(baseline.bias"):
        load_model(config, load_family(config, str(model)), str(model))


def raw_config(tmp_path, **changes):
    baseline_config(tmp_path, "causal_lm", None)
    rows = {"path": str(tmp_path / "rows.jsonl")}
    return {
        "task": {"name": TASK},
        "data": {"train": rows, "test": rows},
        "model": {"name": "tiny", "family": "causal_lm", "dtype": "float32"},
        "trainer": {"output_dir": str(tmp_path / "run"), "max_steps": 3, "logging_steps": 1},
        **changes,
    }


def model_of(baseline, **changes):
    return {"name": "tiny", "family": "causal_lm", "baseline": baseline, **changes}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": model_of("xvall")}, "no baseline 'xvall'. Did you mean 'xval'?"),
        ({"model": model_of(["xval"])}, "model.baseline: name one of regression_head, regres"),
        ({"model": model_of({"name": "xval", "weigth": 2})}, "no setting 'weigth'. Did you mean"),
        ({"model": model_of({"name": "xval", "weight": 0})}, "weight must be > 0"),
        ({"model": model_of("xval"), "objective": "ntl_was"}, "xval has its own loss, which"),
        ({"model": model_of("xval", digits="merged")}, "xval needs one token per digit"),
        ({"model": model_of("xval"), "modules": {"language": "adapted"}},
         "modules.embeddings: xval adds new weights to the embeddings, which would stay at rand"),
        ({"model": model_of("regression_head"), "modules": {"head": "frozen"}}, "modules.head: re"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_one_sentence(tmp_path, changes, why):
    with pytest.raises(ValueError, match=why):
        config_from_dict(raw_config(tmp_path, **changes), where="here", title="here")


def test_families_with_images_are_rejected(tmp_path):
    raw = raw_config(tmp_path, model=model_of("xval", family="qwen2_vl"))
    config = config_from_dict(raw, where="here", title="here")
    with pytest.raises(ValueError, match="baselines are for families without images"):
        load_family(config, "tiny")


def test_answers_without_a_number_are_rejected(tmp_path):
    family = family_of("causal_lm", "xval")
    examples = examples_of(baseline_config(tmp_path, "causal_lm", "xval"))
    texts = [dataclasses.replace(example, answer="yes") for example in examples]
    task = Sums()
    with pytest.raises(ValueError, match="xval is for answers that are numbers, and no row"):
        family.fit(task, texts)


def test_a_baseline_is_a_row_of_a_comparison(tmp_path, capsys):
    comparison = {
        "output_dir": str(tmp_path / "compare"),
        "seeds": [0],
        "control": None,
        "objectives": [
            "ce",
            {"baseline": "xval"},
            {"baseline": "regression_transformer", "preset": "ntl_was", "name": "rt_ntl"},
        ],
        "decode": ["greedy", "median"],
        "warm_start": {"max_steps": 2},
    }
    few = {"samples": 2, "max_new_tokens": 4}
    raw = raw_config(tmp_path, compare=comparison, predict=few)
    config = config_from_dict(raw, where="here", title="here")
    folder = compare(config)
    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary["decoding"]) == {"ce", "warm_start"}  # baselines have greedy answers only
    assert not list(folder.glob("seed0/xval/*.median.*"))
    write_report(folder, trust_remote_code=True)
    assert summary["objectives"] == ["ce", "xval", "rt_ntl"]
    assert set(summary["table"]) == {"ce", "xval", "rt_ntl"}
    assert summary["facts"]["other settings"].startswith(
        'xval (model.baseline: "xval", from warm_start_xval); rt_ntl ('
    )
    for name, parts in (("xval", {"ce", "mse"}), ("rt_ntl", {"ce"})):
        start = folder / "seed0" / f"warm_start_{name}"
        logged = [line for line in lines(start / "log.jsonl") if "loss" in line]
        assert len(logged) == 2
        assert set(logged[0]["components"]) == parts
    (first, *_) = [x for x in lines(folder / "seed0" / "rt_ntl" / "log.jsonl") if "loss" in x]
    assert set(first["components"]) == {"ce", "ntl_was"}
    capsys.readouterr()
    assert compare(config) == folder  # nothing is left to do
    assert "seed0" not in capsys.readouterr().out


def test_the_error_for_a_baseline_in_a_compared_config_says_how_to_train_it_alone(tmp_path):
    comparison = {"output_dir": "x", "objectives": ["ce", "emd"], "control": None}
    raw = raw_config(tmp_path, model=model_of("xval"), compare=comparison)
    with pytest.raises(ValueError, match=r"compare.objectives.1, objective: .* \(compare=null\)"):
        compared_rows(config_from_dict(raw, where="here", title="here"), "here")
    config_from_dict({**raw, "compare": None}, where="here", title="here")


def test_a_comparison_rejects_settings_that_a_baseline_does_not_support(tmp_path):
    comparison = {"output_dir": "x", "objectives": ["ce", {"baseline": "xval", "preset": "emd"}]}
    config = config_from_dict(raw_config(tmp_path, compare=comparison), where="here", title="h")
    with pytest.raises(ValueError, match=r"compare.objectives.1, objective: xval has its own loss"):
        compared_rows(config, "here")


@each_baseline
@each_family
def test_check_data_finds_nothing_to_fix(tmp_path, kind, baseline):
    report = report_text(check_data(baseline_config(tmp_path, kind, baseline)))
    assert report.endswith("\nready")
    assert "in no marked number" not in report
