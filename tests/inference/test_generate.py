"""predict: each row once, resumable, never mixed with the answers of another model."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_models import CACHE, small_config

from mm_numeric.answers import Example, Instances
from mm_numeric.cli import main as cli
from mm_numeric.config.data import DataSource
from mm_numeric.config.decoding import PredictConfig
from mm_numeric.data.collator import prompt_batch
from mm_numeric.data.examples import load_examples
from mm_numeric.evaluation.score import score
from mm_numeric.geometry.coordinates import COORDINATE_FORMATS
from mm_numeric.geometry.frames import Frame
from mm_numeric.inference.candidates import Explored
from mm_numeric.inference.decision_rules import Candidate
from mm_numeric.inference.decode import Explorer
from mm_numeric.inference.generate import Generated, generate, predict, prediction
from mm_numeric.inference.progress import AnswerProgress
from mm_numeric.models.loading import load_family, load_model, model_source
from mm_numeric.runs.folder import read_run
from mm_numeric.synthetic.clock_faces import Clocks
from mm_numeric.tasks.clock import Clock
from mm_numeric.training.run import train

SIZE = {"width_px": 100, "height_px": 100}
FRAME = {
    **SIZE,
    "view": {**SIZE, "scale_x": 1, "scale_y": 1},
    "coordinates": {"max_value": 1000, "format": "qwen_vl"},
}
CLOCKS = Path(__file__).parents[3] / "shared" / "data" / "clocks" / "labels.csv"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a finished run of two steps."""
    folder = tmp_path_factory.mktemp("run")
    train(small_config(folder, "trainer.max_steps=2"))
    return folder / "run"


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_test_row_is_answered_once_in_order(run, tmp_path):
    out = tmp_path / "p.jsonl"
    assert predict(run, None, out, batch_size=5) == 12
    assert [line["id"] for line in lines(out)] == [f"2-{i:06d}" for i in range(12)]
    assert all(line["parsed"] is None or line["reason"] is None for line in lines(out))
    assert {line["prompt"] for line in lines(out)} == {"What time is it?"}
    assert predict(run, None, out) == 0


@pytest.mark.slow
def test_the_learnt_answers_are_generated_and_nothing_after_their_end(tmp_path):
    Image.new("RGB", (60, 60), (200, 30, 90)).save(tmp_path / "a.png")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "1", "image": "a.png", "time": "7:05"}')
    source = f"{{path: {rows}}}"
    train(
        small_config(
            tmp_path, f"data.train={source}", f"data.test={source}", "trainer.max_steps=20",
            "trainer.learning_rate=3.0e-3",
            "trainer.save_strategy='no'", "evaluate=null",
        )
    )  # fmt: skip
    predict(tmp_path / "run", None, tmp_path / "p.jsonl")
    (line,) = lines(tmp_path / "p.jsonl")
    assert (line["text"], line["parsed"], line["target"]) == ("7:05", "7:05", "7:05")


def test_tokens_are_as_probable_as_the_model_says_when_it_reads_them(run):
    config = read_run(run)
    family = load_family(config, str(run / "model"))
    model = load_model(config, family, str(run / "model")).eval()
    examples = load_examples(config.task, config.data.test, CACHE, training=False)[:3]
    for example, found in zip(examples, generate(model, family, examples, 6), strict=True):
        inputs, _ = prompt_batch(family, [example])
        prompt = inputs["input_ids"].shape[1]
        ids = torch.cat([inputs["input_ids"], torch.tensor([found.ids])], dim=1)
        mask, answered = torch.ones_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        images = {key: inputs[key] for key in ("pixel_values", "image_grid_thw")}
        with torch.no_grad():
            logits = model(**family.model_inputs(ids, mask, answered, images)).logits
        probs = logits[0, prompt - 1 : -1].double().softmax(-1)
        length = found.ids.index(family.pad_id) if family.pad_id in found.ids else len(found.ids)
        for i in range(length):
            assert found.probabilities[i] == pytest.approx(float(probs[i, found.ids[i]]), abs=1e-5)
            assert probs[i].argmax() == found.ids[i]


def test_a_shape_is_as_sure_as_its_tokens_are_in_the_mean(run):
    config = read_run(run)
    family = load_family(config, str(run / "model"))
    text = "a<|box_start|>(1,22),(3,4)<|box_end|>é<|box_start|>(5,6),(7,8)<|box_end|>"
    ids = family.tokenizer(text)["input_ids"]
    probs = [1 / (i + 2) for i in range(len(ids))]
    found = Generated(text, None, [*ids, family.stop_ids[0], family.pad_id], [*probs, 0.9, 0.1])
    tokens = family.tokenizer.convert_ids_to_tokens(ids)
    starts = [i for i, token in enumerate(tokens) if token == "<|box_start|>"]
    ends = [i for i, token in enumerate(tokens) if token == "<|box_end|>"]
    spans = COORDINATE_FORMATS["qwen_vl"].read(text).shapes
    for shape, start, end in zip(spans, starts, ends, strict=True):
        mean = sum(probs[start : end + 1]) / (end + 1 - start)
        assert found.mean_probability(family, shape.span) == pytest.approx(mean)


def test_shapes_have_the_mean_probability_of_their_tokens(tmp_path):
    config = small_config(tmp_path, "task=text_detection")
    family = load_family(config, model_source(config, config.output_dir))
    text = "<|box_start|>(10,20),(300,400)<|box_end|><|quad_start|>(1)<|quad_end|>"
    ids = family.tokenizer(text)["input_ids"]
    example = Example(id="1", image=None, prompt="", answer=Instances(()), where="")
    frame = Frame.from_dict(FRAME)
    answer = Generated(text, frame, ids, [0.5] * len(ids))
    line = prediction(config, family, example, answer)
    assert len(line["parsed"]) == len(line["scores"]) == 1
    assert line["scores"] == [0.5]
    assert "scores" not in prediction(config, family, example, answer._replace(text="none"))


def test_a_shape_after_thoughts_has_the_mean_probability_of_its_own_tokens(tmp_path):
    config = small_config(tmp_path, "task=text_detection")
    family = load_family(config, model_source(config, config.output_dir))
    shape = "<|box_start|>(10,20),(300,400)<|box_end|>"
    text = f"<think>{shape}</think> <answer>{shape}</answer>"
    ids = family.tokenizer(text)["input_ids"]
    tokens = family.tokenizer.convert_ids_to_tokens(ids)
    start = [i for i, token in enumerate(tokens) if token == "<|box_start|>"][1]
    end = [i for i, token in enumerate(tokens) if token == "<|box_end|>"][1]
    probs = [0.8 if start <= i <= end else 0.1 for i in range(len(ids))]
    example = Example(id="1", image=None, prompt="", answer=Instances(()), where="")
    line = prediction(config, family, example, Generated(text, Frame.from_dict(FRAME), ids, probs))
    assert line["text"] == text
    assert (len(line["parsed"]), line["scores"]) == (1, [0.8])


def test_a_decoded_answer_has_a_score_for_each_of_its_points(tmp_path):
    config = small_config(tmp_path, "task=pointing")
    family = load_family(config, model_source(config, config.output_dir))
    one, other = (f"<|quad_start|>({at},{at})<|quad_end|>" for at in (100, 500))
    frame, ids = Frame.from_dict(FRAME), family.tokenizer(one + other)["input_ids"]
    example = Example(id="1", image=None, prompt="", answer=Instances(()), where="")
    pairs = (one + other, 0.3), (one, 0.7)
    found = [Candidate(config.task.parse(text, frame), text, prob) for text, prob in pairs]
    answer = Generated(one + other, frame, ids, [0.5] * len(ids), found)
    line = prediction(config, family, example, answer, "mbr")
    assert (line["text"], line["scores"]) == (one, [0.0])
    line = prediction(config, family, example, answer, "greedy")
    assert (line["scores"], line["token_scores"]) == ([0.0, 0.0], [0.5, 0.5])


def test_a_stopped_prediction_goes_on(run, tmp_path):
    out, whole = tmp_path / "p.jsonl", tmp_path / "whole.jsonl"
    predict(run, None, whole)
    predict(run, None, out, limit=5)
    with out.open("a") as file:
        file.write('{"id": "2-000005", "te')  # killed in the middle of a line
    assert predict(run, None, out, batch_size=3) == 7
    assert lines(out) == lines(whole)


def test_the_next_command_can_be_pasted_if_the_folder_has_a_space(run, tmp_path, capsys):
    copied = shutil.copytree(run, tmp_path / "my run")
    commands = []
    for words in ([], ["--training-rows"]):
        assert cli.main(["predict", "--model", str(copied), "--limit", "1", *words]) == 0
        commands.append(shlex.split(capsys.readouterr().out.partition("next: ")[2]))
    assert commands == [
        ["mm-numeric", "score", f"{copied}/predictions.jsonl", "--partial"],
        ["mm-numeric", "train", "CONFIG", f"data.train.answers={copied}/training_answers.jsonl"],
    ]


def test_another_model_s_answers_are_not_mixed_in(run, tmp_path):
    out = tmp_path / "p.jsonl"
    predict(run, None, out, limit=2)
    with pytest.raises(ValueError, match=r"of other rows or with other settings \(rows is"):
        predict(run, DataSource(synthetic=Clocks(rows=3, seed=9)), out)
    with pytest.raises(ValueError, match="max_new_tokens is 8 there and 3 here"):
        predict(run, None, out, max_new_tokens=3)


@pytest.mark.parametrize("rule", ["greedy", "median"])
def test_the_progress_has_rows_and_tokens_within_a_batch(run, tmp_path, monkeypatch, rule):
    seen = []

    class Noted(AnswerProgress):
        def __init__(self, desc, rows, tokens, _):
            super().__init__(
                desc, rows, tokens, lambda own: seen.append((own.answered, own.tokens))
            )

    monkeypatch.setattr("mm_numeric.inference.generate.AnswerProgress", Noted)
    predict(run, None, tmp_path / "p.jsonl", batch_size=6, max_new_tokens=4, rules=(rule,))
    within = [tokens for answered, tokens in seen if answered == 0]
    assert within[:2] == [0, 6]
    assert len(set(within)) > 2
    assert seen[-1][0] == 12
    if rule == "greedy":
        assert within == [0, 6, 12, 18, 24]


def test_a_corrected_label_is_not_scored_on_the_old_one(run, tmp_path):
    Image.new("RGB", (60, 60)).save(tmp_path / "a.png")
    rows, out = tmp_path / "rows.jsonl", tmp_path / "p.jsonl"
    rows.write_text('{"id": "1", "image": "a.png", "time": "7:05"}')
    predict(run, DataSource(path=str(rows)), out)
    rows.write_text('{"id": "1", "image": "a.png", "time": "7:06"}')
    with pytest.raises(ValueError, match=r"\(rows is"):
        predict(run, DataSource(path=str(rows)), out)


def test_a_moved_run_goes_on(run, tmp_path):
    out = tmp_path / "p.jsonl"
    predict(run, None, out, limit=3)
    shutil.copytree(run, tmp_path / "elsewhere")
    assert predict(tmp_path / "elsewhere", None, out) == 9


def test_a_file_of_unknown_origin_is_rejected(run, tmp_path):
    out = tmp_path / "p.jsonl"
    out.write_text('{"id": "2-000000", "text": "7:05", "target": "7:05"}\n')
    with pytest.raises(ValueError, match="contains predictions of another run"):
        predict(run, None, out)


def test_settings_that_a_message_names_can_be_changed(run, tmp_path, capsys):
    out = tmp_path / "p.jsonl"
    changed = [
        "task.prompt=Tell the time.",
        "predict.max_new_tokens=2",
        "data.test.synthetic.rows=3",
    ]
    assert predict(run, None, out, limit=1, overrides=changed) == 1
    (line,) = lines(out)
    assert (line["prompt"], line["rows_due"]) == ("Tell the time.", 3)
    with pytest.raises(ValueError, match="contains predictions of another run, of other rows"):
        predict(run, None, out)
    for fixed in ("trainer.max_steps=3", "task.name=arithmetic", "model.dtype=bfloat16"):
        assert cli.main(["predict", "--model", str(run), fixed]) == 2
        assert f"{fixed}: the settings of a trained model are fixed" in capsys.readouterr().err
    missing = ["predict", "--model", str(run), "data.test.path=missing.jsonl"]
    assert cli.main(missing) == 2
    assert "missing.jsonl: there is no such file" in capsys.readouterr().err


def test_only_a_finished_run_answers(tmp_path):
    with pytest.raises(ValueError, match="contains no run; use the output_dir"):
        predict(tmp_path, None, tmp_path / "p.jsonl")
    (tmp_path / "config.yaml").write_text(small_config(tmp_path).to_yaml())
    with pytest.raises(ValueError, match="is not finished"):
        predict(tmp_path, None, tmp_path / "p.jsonl")


@pytest.mark.slow
@pytest.mark.skipif(not CLOCKS.is_file(), reason="the real clocks are not here")
def test_real_clocks_are_answered_and_scored_to_the_last(run, tmp_path):
    out = tmp_path / "real.jsonl"
    assert predict(run, DataSource(path=str(CLOCKS)), out) == 144
    scores = score(out, write=False)
    assert len(scores.rows) == 144
    assert sum(scores.failures.values()) == scores.columns["unreadable"].sum()


@pytest.mark.slow
def test_a_killed_prediction_with_median_goes_on_and_ends_with_the_same_file(learnt, tmp_path):
    """And the batch size changes nothing, in float32."""
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    assert predict(learnt, None, whole, decode="median") == 12
    predict(learnt, None, cut, decode="median", batch_size=5, limit=7)
    text = cut.read_text(encoding="utf-8")
    cut.write_text(text[: len(text) - 9], encoding="utf-8")  # killed while it wrote a line
    assert predict(learnt, None, cut, decode="median", batch_size=3) == 6
    assert [strip(line) for line in lines(cut)] == [strip(line) for line in lines(whole)]
    with pytest.raises(ValueError, match=r"decode\.rule is 'median' there and 'mbr' here"):
        predict(learnt, None, cut, decode="mbr")
    with pytest.raises(ValueError, match="with other settings"):
        predict(learnt, None, cut)


def strip(line):
    """Without the last digits of probabilities, which depend on the batch."""
    decode = {k: round(v, 4) if isinstance(v, float) else v for k, v in line["decode"].items()}
    return {**line, "decode": decode}


@pytest.mark.slow
def test_all_rules_share_the_explored_answers(learnt, tmp_path):
    rules = ("greedy", "mean", "median", "mbr")
    assert predict(learnt, None, tmp_path / "p.jsonl", rules=rules, mass=0.9) == 12
    names = {"greedy": "p.jsonl", **{rule: f"p.{rule}.jsonl" for rule in rules[1:]}}
    found = {rule: lines(tmp_path / name) for rule, name in names.items()}
    predict(learnt, None, tmp_path / "greedy.jsonl")
    greedy = lines(tmp_path / "greedy.jsonl")
    for rule, own in found.items():
        for line, alone in zip(own, greedy, strict=True):
            assert line["greedy"] == alone["text"]
            assert line["decode"]["rule"] == rule
            assert line["decode"]["covered"] == pytest.approx(
                found["mbr"][own.index(line)]["decode"]["covered"]
            )
            assert line["parsed"] == line["text"] or line["reason"]
            if rule == "greedy":
                assert {k: line[k] for k in alone} == alone
    assert all(line["decode"]["for"] == "circular_minutes" for line in found["mbr"])
    # Median and least expected circular distance are the same rule, up to ties.
    assert [a["text"] for a in found["median"]] == [b["text"] for b in found["mbr"]]
    assert any(line["decode"]["candidates"] > 1 for line in found["median"])
    assert predict(learnt, None, tmp_path / "p.jsonl", rules=rules, mass=0.9) == 0


def test_a_text_is_parsed_once_for_all_rows_with_the_same_frame(monkeypatch, tmp_path):
    config = small_config(tmp_path)
    family, texts = load_family(config, model_source(config, config.output_dir)), []
    parse = Clock.parse
    monkeypatch.setattr(Clock, "parse", lambda *a: texts.append(a[1]) or parse(*a))
    explorer = Explorer(PredictConfig(decode="median"), family, config.task)
    likely = {"7:05": 0.5, "7:06": 0.2, "none": 0.2}
    explored = Explored({tuple(family.answer(text).ids[:-1]): p for text, p in likely.items()})
    for _ in range(2):
        found = explorer.candidates(explored, None)
        assert [(str(each.answer), each.text, each.probability) for each in found] == [
            ("7:05", "7:05", 0.5), ("7:06", "7:06", 0.2)
        ]  # fmt: skip
    assert texts == [*likely]
    monkeypatch.setattr("mm_numeric.inference.decode._MOST_KNOWN", 2)
    explorer = Explorer(PredictConfig(decode="median"), family, config.task)
    for _ in range(2):
        explorer.candidates(explored, None)
    assert texts == [*likely, *likely, *likely]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """A run that writes times, not all of them right."""
    folder = tmp_path_factory.mktemp("learnt")
    train(
        small_config(
            folder, "trainer.max_steps=40", "trainer.learning_rate=4.5e-3",
            "trainer.save_strategy='no'",
        )
    )  # fmt: skip
    return folder / "run"
