"""distil: a model is trained further on its own decoded answers, and resumes at any moment."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from planned import seed_configs
from rank_runs import run as run_on_ranks
from run_files import cut_off, same
from synthetic_rows import data_for, rows_for
from tiny_models import CACHE, small_config

from mm_numeric.cli import main as cli
from mm_numeric.comparison.rows import compared_rows
from mm_numeric.comparison.run import compare, link_teacher
from mm_numeric.data.collator import make_collator
from mm_numeric.data.examples import load_examples
from mm_numeric.evaluation.report.summary_file import read_summary
from mm_numeric.inference.generate import predict
from mm_numeric.inference.predictions_file import answer_order
from mm_numeric.models.loading import load_family
from mm_numeric.runs.folder import read_run
from mm_numeric.training.run import train

DISTIL = "{decode: median, keep: 0.8, rows: 10, trainer: {max_steps: 4, learning_rate: 2.0e-3}}"
KEPT = 8  # of 10 answers


def job(folder: Path, *overrides: str):
    """Return a run whose answers, which a hash makes, are nearly all parseable."""
    return small_config(
        folder,
        "task={name: 'hashed_clock:HashedClock'}",
        "trainer.max_steps=4",
        "trainer.save_total_limit=null",
        "predict={max_new_tokens: 2, branches: 4, batch_size: 16}",
        *overrides,
    )


def answers_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a finished run with ``distil``."""
    folder = tmp_path_factory.mktemp("distilled")
    train(job(folder, f"distil={DISTIL}"))
    return folder / "run"


@pytest.mark.slow
def test_the_parts_are_those_of_train_predict_and_train(run, tmp_path, capsys):
    """The same weights come out of the three commands."""
    plain = job(tmp_path)
    train(plain)
    assert same(plain.output_dir, run / "teacher")
    words = ["--training-rows", "--decode", "median", "--limit", "10", "--trust-remote-code"]
    assert cli.main(["predict", "--model", str(plain.output_dir), *words]) == 0
    file = plain.output_dir / "training_answers.median.jsonl"
    assert f"train CONFIG data.train.answers={file}" in capsys.readouterr().out
    answers = answers_of(file)
    assert answers == answers_of(run / "training_answers.median.jsonl")
    chosen = sorted(answer_order(range(40))[:10])
    assert [line["id"] for line in answers] == [f"1-{i:06d}" for i in chosen]
    student = job(
        tmp_path, f"trainer.output_dir={tmp_path / 'student'}", "objective=ce",
        f"model.name={plain.output_dir / 'model'}", "trainer.learning_rate=2.0e-3",
        f"data.train.answers={file}", "data.train.keep_answers=0.8",
    )  # fmt: skip
    train(student)
    assert same(student.output_dir, run)
    assert not same(run, run / "teacher")
    facts = json.loads((run / "run.json").read_text())
    assert (facts["teacher"], facts["rows"]) == ({"steps": 4, "rows": 40}, KEPT)
    assert (
        read_run(run, trust_remote_code=True).to_dict()
        == job(run.parent, f"distil={DISTIL}").to_dict()
    )


@pytest.mark.slow
def test_a_kill_in_any_part_changes_nothing(run, tmp_path):
    config = job(run.parent, f"distil={DISTIL}")
    whole = shutil.copytree(run, tmp_path / "whole")
    answers = run / "training_answers.median.jsonl"

    def kill_student():
        cut_off(run, 2)

    def kill_answers():
        for path in (run / "model", *run.glob("checkpoint-*")):
            shutil.rmtree(path)
        (run / "run.json").unlink()
        answers.write_bytes(answers.read_bytes()[:-40])  # the last line is incomplete

    def kill_teacher():
        kill_answers()
        for path in run.glob("*answers*"):
            path.unlink()
        cut_off(run / "teacher", 2)

    for kill in (kill_student, kill_answers, kill_teacher):
        kill()
        with pytest.raises(ValueError, match="already contains this run: add --resume"):
            train(config)
        train(config, resume=True)
        assert same(run, whole)
        assert answers_of(answers) == answers_of(whole / answers.name)
        assert json.loads((run / "run.json").read_text())["resumed"]
    assert train(config, resume=True) == run / "model"
    changed = replace(config.distil, rows=None)
    with pytest.raises(ValueError, match=r"another run: distil\.rows is 10 there and not set here"):
        train(replace(config, distil=changed), resume=True)


@pytest.mark.slow
def test_boxes_of_least_expected_risk_are_trained_on_as_they_were_written(tmp_path):
    """The text of an answer, parsed to pixels and written again in the same frame, is the same."""
    config = small_config(
        tmp_path, "task={name: grounding}", "trainer.max_steps=1", *data_for("grounding", 4, 12),
        "predict={max_new_tokens: 40, constrain: true, samples: 4}", "distil={}",
    )  # fmt: skip
    train(config)
    file = tmp_path / "run" / "training_answers.mbr.jsonl"
    source = replace(config.data.train, answers=str(file))
    examples = load_examples(config.task, source, CACHE, training=True)
    family = load_family(config, str(tmp_path / "run" / "model"))
    collate = make_collator(config, family)
    texts = [family.text(collate([example])["labels"].tolist()) for example in examples]
    assert texts == [line["text"] for line in answers_of(file)]
    assert len(set(texts)) > 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["distil.decode=best"], r"distil: decode: there is no rule 'best'\. Known: greedy"),
        (["distil.keep=2"], r"distil: keep is all, parseable or a share above 0 and at most 1"),
        (["distil={decode: greedy, keep: 0.5}"], r"distil: keep is a share, and greedy answers"),
        (["distil={keep: all, rows: 3}"], r"distil: keep is all, and rows limits the answers"),
        (["distil.trainer.output_dir=x"], r"distil: trainer\.output_dir is that of the run"),
        (["distil.trainer.max_step=1"], r"distil\.trainer: .*max_step"),
        (["distil={}", "model.baseline=xval"], r"distil: a baseline predicts its answers without"),
        (["distil.rows=3", f"data.train={[rows_for('clock', 3), rows_for('clock', 4)]}"],
         r"distil\.rows: the first rows are all from one of the training sources; remove it\.$"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_one_sentence(tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        small_config(tmp_path, "objective=ce", "compare=null", *overrides)


def test_a_rule_or_ranks_that_do_not_fit_are_found_before_training(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"accuracy_at_0\.5.*ClockTime"):
        train(small_config(tmp_path, "distil={decode: {for: accuracy_at_0.5}}"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = r"distil: ranks that share a model by trainer\.deepspeed cannot answer the training"
    with pytest.raises(ValueError, match=message):
        train(small_config(tmp_path, "distil={decode: median}", "trainer.deepspeed=zero2"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_ranks_answer_the_rows_that_they_are_trained_on(tmp_path):
    batch = "trainer.per_device_train_batch_size=2"
    config = job(tmp_path, f"distil={DISTIL}", batch, "predict.batch_size=8")
    file = tmp_path / "distil.yaml"
    file.write_text(config.to_yaml())
    run_on_ranks(2, [str(file)])
    answers = tmp_path / "run" / "training_answers.median.jsonl"
    alone, teacher = tmp_path / "alone.jsonl", tmp_path / "run" / "teacher"
    predict(teacher, config.data.train, alone, limit=10, decode="median", trust_remote_code=True)
    assert answers.read_bytes() == alone.read_bytes()
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (facts["teacher"], facts["rows"]) == ({"steps": 4, "rows": 40}, KEPT)
    assert (facts["steps"], facts["batch_rows"]) == (4, 4)


ROWS = f"[ce, {{name: ce_distilled, preset: ce, with: {{distil: {DISTIL}}}}}]"


def test_a_row_of_a_comparison_starts_from_the_shared_warm_start(tmp_path):
    config = small_config(tmp_path, f"compare.objectives={ROWS}", "compare.control=null")
    assert {row.warm_start for row in compared_rows(config)} == {"warm_start"}
    warm, plain, distilled = seed_configs(config, 0)
    assert (warm.distil, plain.distil) == (None, None)
    assert distilled.distil.rows == 10
    assert distilled.model.name == plain.model.name == str(warm.output_dir / "model")


@pytest.mark.slow
def test_a_comparison_reports_the_cost_and_resumes(tmp_path):
    config = job(
        tmp_path, f"compare.objectives={ROWS}", "compare.control=null", "compare.seeds=[0]",
        "compare.warm_start.max_steps=2", "compare.jobs=1",
    )  # fmt: skip
    folder = compare(config)
    plain, row = folder / "seed0" / "ce", folder / "seed0" / "ce_distilled"
    assert same(plain, row / "teacher")
    weights = [own / "model" / "model.safetensors" for own in (plain, row / "teacher")]
    assert weights[0].samefile(weights[1]), "its teacher was trained again"
    assert read_run(row / "teacher", trust_remote_code=True).output_dir == row / "teacher"
    assert not list(row.rglob("checkpoint-*"))
    facts = read_summary(folder)["facts"]
    assert facts["distillation"] == f"ce_distilled: 4 more steps on {KEPT} of its own answers"
    assert facts["each objective"].startswith("4 steps of 4 rows, the same rows")
    whole = shutil.copytree(row, tmp_path / "whole")
    shutil.rmtree(row / "model")
    for name in ("run.json", "results.json", "predictions.jsonl"):
        (row / name).unlink()
    compare(config)  # with a finished teacher and answers, and no checkpoint
    assert same(row, whole)


def test_a_teacher_is_only_linked_from_runs_that_name_the_same_code(tmp_path, monkeypatch):
    (tmp_path / "imported_by_nobody.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = job(tmp_path / "seed0", f"distil={DISTIL}")
    for name, text in (("foreign", "task: 'imported_by_nobody:Task'\n"), ("broken", "task: [\n")):
        other = tmp_path / "seed0" / name
        other.mkdir(parents=True)
        (other / "config.yaml").write_text(text, encoding="utf-8")
        (other / "run.json").write_text("{}", encoding="utf-8")
    link_teacher(config)
    assert not config.output_dir.exists()
