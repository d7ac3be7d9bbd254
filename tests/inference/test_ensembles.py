"""Several runs answer together: the mean of their distributions, against brute force."""

import json
import math
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch
from finished_runs import make_micro_model
from transformers import GPT2LMHeadModel

from mm_numeric.answers import Unreadable
from mm_numeric.cli import main as cli
from mm_numeric.data.collator import prompt_batch
from mm_numeric.data.examples import load_examples
from mm_numeric.inference.generate import predict
from mm_numeric.models.loading import load_family
from mm_numeric.runs.folder import read_run

pytestmark = pytest.mark.slow

ROWS = 4


@pytest.fixture(scope="module")
def runs(finished_runs, tmp_path_factory):
    """A trained run, the same with other weights, and an untrained one; with their rows."""
    folder = tmp_path_factory.mktemp("ensemble")
    shutil.copy(finished_runs / "test.jsonl", folder)
    for name in ("a", "b", "c"):
        shutil.copytree(finished_runs / "run", folder / name)
        facts = folder / name / "run.json"
        facts.write_text(json.dumps({**json.loads(facts.read_text()), "copy": name}))
    make_micro_model(folder / "micro")
    model = GPT2LMHeadModel.from_pretrained(folder / "b/model")
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    model.save_pretrained(folder / "b/model")
    GPT2LMHeadModel.from_pretrained(folder / "micro").save_pretrained(folder / "c/model")
    return folder


@torch.no_grad()
def every_answer(folder, example, longest):
    """Return the probability of each text of up to ``longest`` tokens, in float64."""
    config = read_run(folder)
    family = load_family(config, str(folder / "model"))
    model = GPT2LMHeadModel.from_pretrained(folder / "model").double()
    inputs, _ = prompt_batch(family, [example])
    (prompt,) = inputs["input_ids"].tolist()
    spelled = [family.text([i]) for i in range(len(family.tokenizer))]  # one character each
    letters = [i for i in range(len(family.tokenizer)) if i not in family.stop_ids]
    found, probs = {}, {(): 1.0}
    for length in range(longest + 1):
        beginnings = list(product(letters, repeat=length))
        ids = torch.tensor([[*prompt, *own] for own in beginnings])
        after = model(ids).logits[:, -1].softmax(-1).numpy()
        for own, following in zip(beginnings, after, strict=True):
            if own:
                text = "".join(spelled[token] for token in own)
                found[text] = probs[own] * following[family.stop_ids[0]]
            if length < longest:
                probs |= {(*own, token): probs[own] * following[token] for token in letters}
    return found


def brute_force(folders, example, task, longest):
    """Return the probability of each number in the mean of the distributions."""
    each, values = [every_answer(folder, example, longest) for folder in folders], {}
    for text in each[0]:
        answer = task.parse(text, None)
        if not isinstance(answer, Unreadable):
            prob = sum(own[text] for own in each) / len(each)
            values[answer.value] = values.get(answer.value, 0.0) + prob
    return dict(sorted(values.items()))


def lower_median(values):
    total = 0.0
    for value, prob in values.items():
        total += prob
        if total >= sum(values.values()) / 2:
            return value
    raise AssertionError


@pytest.mark.parametrize(
    ("models", "longest", "mass"), [("abc", 1, 1.0), ("ab", 2, 0.999), ("a", 1, 1.0)]
)
def test_an_ensemble_decides_by_the_mean_of_the_distributions(
    runs, monkeypatch, models, longest, mass
):
    """All answers of one character, with an untrained model, and of two characters."""
    monkeypatch.chdir(runs)
    rules = {"median": "m.jsonl", "mean": "m.mean.jsonl", "mbr": "m.mbr.jsonl"}
    for name in rules.values():
        Path(name).unlink(missing_ok=True)
    folders = [Path(name) for name in models]
    task, source = read_run(folders[0]).task, read_run(folders[0]).data.test
    settings = {"mass": mass, "branches": 2000, "max_new_tokens": longest + 1}
    exact = {
        "decode": {"for": "exact"},
        "limit": ROWS if longest == 1 else 1,
        "rules": tuple(rules),
    }
    predict(folders, None, Path("m.jsonl"), **settings, **exact)
    found = {
        rule: [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]
        for rule, name in rules.items()
    }
    ids = {row["id"] for row in found["mean"]}
    examples = load_examples(task, source, Path("cache"), training=False)
    examples = [example for example in examples if example.id in ids]
    near = 2e-6 if mass == 1 else 2e-3
    for i, example in enumerate(examples):
        values = brute_force(folders, example, task, longest)
        total = sum(values.values())
        row = found["median"][i]
        assert float(row["parsed"]) == lower_median(values)
        assert row["decode"]["covered"] == pytest.approx(total, abs=near)
        own = values[float(row["parsed"])]
        assert row["decode"]["confidence"] == pytest.approx(own, abs=near)
        mean = math.fsum(value * prob for value, prob in values.items()) / total
        assert float(found["mean"][i]["parsed"]) == pytest.approx(mean, abs=0.51)  # rounded
        assert float(found["mbr"][i]["parsed"]) == max(values, key=values.get)


def test_the_answers_of_an_ensemble_are_not_mixed_with_others(runs, monkeypatch, capsys):
    monkeypatch.chdir(runs)
    words = ["--decode", "median", "--limit", "2", "predict.mass=0.9"]
    for _ in range(2):  # the second time, nothing is left to do
        assert cli.main(["predict", "--model", "a", "b", *words]) == 0
    rows = Path("a/ensemble.median.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 2
    assert cli.main(["score", "a/ensemble.median.jsonl", "--partial"]) == 0
    assert cli.main(["predict", "--model", "a", "c", *words]) == 2
    assert "a/ensemble.median.jsonl contains predictions of another run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b"], "greedy answers of several models cannot be averaged; set another rule"),
        (["a", "other", "--decode", "median"], "other: the run has another task or other test"),
        (["a", "./a", "--decode", "median"], "--model: a run is named twice"),
        (["a", "predict.mass=0.9"], None),
        (
            ["a", "b", "--endpoint", "http://h/v1", "--served-model", "m"],
            "--endpoint asks one model; name one run",
        ),
    ],
)
def test_models_that_cannot_answer_together_are_one_sentence(
    runs, monkeypatch, capsys, words, message
):
    monkeypatch.chdir(runs)
    if not Path("other").exists():
        shutil.copytree("b", "other")
        config = Path("other/config.yaml")
        text = config.read_text(encoding="utf-8").replace("'{question}'", "'{question} '")
        assert text != config.read_text(encoding="utf-8")
        config.write_text(text, encoding="utf-8")
    code = cli.main(["predict", "--model", *words, "--limit", "1", "--out", "x.jsonl"])
    assert code == (0 if message is None else 2)
    assert message is None or message in capsys.readouterr().err
