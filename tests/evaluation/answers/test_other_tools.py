"""Files of six tools with the same four answers score the same, and a wrong join is an error.

tests/fixtures/other_tools has the answers of one model without special tokens, written by

    llamafactory*.jsonl     LLaMA-Factory 0.9.5, CustomSeq2SeqTrainer.save_predictions
    ms_swift.jsonl          ms-swift 4.6.0, SwiftInfer.run
    lmms_eval.jsonl         lmms-eval 0.7.3, EvaluationTracker.save_results_samples
    trl*.parquet            TRL 1.16.0, GRPOTrainer.evaluate with log_completions
    vlmevalkit.*            pandas 3.1.1 with XlsxWriter, as in VLMEvalKit's vlmeval/smp/file.py
    vllm_batch.jsonl        by hand, as vLLM's vllm/entrypoints/openai/run_batch.py writes it

where the generated texts were given instead of a model.
"""

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from mm_numeric.cli import main as cli
from mm_numeric.evaluation.answers.source import PreparedRows
from mm_numeric.evaluation.score import score
from mm_numeric.geometry.frame_presets import FrameRule
from mm_numeric.tasks.answer_part import without_end_tokens

FILES = Path(__file__).parents[2] / "fixtures" / "other_tools"
ROWS = FILES / "rows.jsonl"
SCORED = [
    *("llamafactory.jsonl", "llamafactory_with_special_tokens.jsonl", "ms_swift.jsonl"),
    *("lmms_eval.jsonl", "vlmevalkit.xlsx", "vlmevalkit.tsv", "vllm_batch.jsonl"),
    "trl_ids.parquet",
]
WITHOUT_IDS = SCORED[:3]


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines(keepends=True)


def write(path, lines):
    path.write_text("".join(lines), encoding="utf-8")
    return path


def scored(answers, rows=ROWS, **options):
    joined = PreparedRows(path=rows, frame=FrameRule.of_family("qwen2_vl"), **options)
    return score(answers, task_name="grounding", rows=joined, write=False)


@pytest.mark.parametrize("name", SCORED)
def test_the_file_of_each_tool_is_scored(name):
    found = scored(FILES / name)
    assert [row["id"] for row in found.rows] == [f"row-{i}" for i in range(4)]
    assert [row["iou"] for row in found.rows] == pytest.approx([1, 280 / 380, 0, 0], abs=0.02)
    assert found.failures == {"no coordinates": 1}


@pytest.mark.parametrize("name", ["trl.parquet", "trl_messages.parquet"])
def test_completions_of_trl_are_in_another_order_and_need_ids(name, capsys):
    words = ["score", str(FILES / name), "--rows", str(ROWS), "--task", "grounding"]
    assert cli.main([*words, "--family", "qwen2_vl"]) == 2
    assert "row 1: the prompt is that of the question 'row-2', but the" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*WITHOUT_IDS, "lmms_eval.jsonl"])
def test_rows_in_another_order_are_an_error(tmp_path, name):
    rows = write(tmp_path / "rows.jsonl", lines_of(ROWS)[::-1])
    with pytest.raises(ValueError, match=r"is that of the question 'row-.', but the question at"):
        scored(FILES / name, rows)


@pytest.mark.parametrize("name", WITHOUT_IDS)
def test_other_rows_of_the_same_number_are_an_error(tmp_path, name):
    other = {"image": "x.png", "width": 640, "height": 480}
    lines = [
        json.dumps({**other, "id": i, "phrase": f"tree {i}", "box": [i, 7, i + 70, 77]}) + "\n"
        for i in range(4)
    ]
    found = r"have no id, and their prompt and correct answer can|about the image 0.png, but the"
    with pytest.raises(ValueError, match=found):
        scored(FILES / name, write(tmp_path / "rows.jsonl", lines))


@pytest.mark.parametrize("name", SCORED)
def test_fewer_or_more_rows_than_answers_are_an_error(tmp_path, name):
    lines = lines_of(ROWS)
    with pytest.raises(ValueError, match=r"4 answers without an id, but .* has 3|is not in .*rows"):
        scored(FILES / name, write(tmp_path / "rows.jsonl", lines[:3]))
    more = json.dumps({**json.loads(lines[0]), "id": "new"}) + "\n"
    with pytest.raises(
        ValueError, match=r"4 answers without an id, but .* has 5|no answer to 'new"
    ):
        scored(FILES / name, write(tmp_path / "rows.jsonl", [*lines, more]))


@pytest.mark.parametrize("name", ["lmms_eval.jsonl", "vlmevalkit.tsv", "vllm_batch.jsonl"])
def test_a_second_answer_to_a_question_is_an_error(tmp_path, name):
    lines = lines_of(FILES / name)
    with pytest.raises(ValueError, match="a second answer to the question"):
        scored(write(tmp_path / name, [*lines, lines[-1]]))


def test_the_prompt_may_have_other_words_around_the_question(tmp_path):
    lines = [line.replace("Locate:", "Where is the") for line in lines_of(FILES / "ms_swift.jsonl")]
    answers = [json.loads(line) for line in lines]
    bare = [{"response": a["response"], "messages": a["messages"]} for a in answers]
    path = write(tmp_path / "answers.jsonl", [json.dumps(row) + "\n" for row in bare])
    assert scored(path).failures == {"no coordinates": 1}
    write(path, [json.dumps(row) + "\n" for row in (bare[1], bare[0], *bare[2:])])
    with pytest.raises(
        ValueError, match=r"the prompt is that of the question 'row-1'.* up to 2 of"
    ):
        scored(path)


def phrases_scored(folder, phrases, prompts, images=()):
    """Score answers with these prompts and images to rows with these phrases."""
    row = {"width": 640, "height": 480}
    lines = [
        {**row, "id": i, "image": f"{i}.png", "phrase": phrase, "box": [i, 7, i + 70, 77]}
        for i, phrase in enumerate(phrases)
    ]
    answers = [{"response": "none", "messages": prompt} for prompt in prompts]
    for answer, image in zip(answers, images, strict=False):
        answer["images"] = [image]
    rows = write(folder / "rows.jsonl", [json.dumps(line) + "\n" for line in lines])
    file = write(folder / "a.jsonl", [json.dumps(answer) + "\n" for answer in answers])
    return scored(file, rows, options={"prompt": 'Find "{phrase}".'})


def test_prompts_are_compared_by_whole_words_without_case_and_punctuation(tmp_path):
    phrases = ["cat", "car", "red car", "Scar"]
    prompts = [f"Where is the {phrase.lower()}?" for phrase in phrases]
    assert len(phrases_scored(tmp_path, phrases, prompts).rows) == 4
    with pytest.raises(ValueError, match="line 2: the prompt is that of the question '2', but"):
        phrases_scored(tmp_path, phrases, [prompts[i] for i in (0, 2, 1, 3)])
    with pytest.raises(ValueError, match="line 1: the prompt is that of the question '3', but"):
        phrases_scored(tmp_path, phrases, [prompts[i] for i in (3, 1, 2, 0)])


def test_text_that_all_questions_share_does_not_reject_a_file(tmp_path):
    assert len(phrases_scored(tmp_path, ["cat", "cat"], ["Where?", "Where?"]).rows) == 2
    assert len(phrases_scored(tmp_path, ["cat"], ["Where?"]).rows) == 1


@pytest.mark.parametrize("phrases", [["cat"], ["cat", "dog"]])
def test_names_of_images_must_not_differ_even_if_the_prompts_agree(tmp_path, phrases):
    names = ["/data/0.png", "/data/1.png"]
    assert phrases_scored(tmp_path, phrases, phrases, names[: len(phrases)]).rows
    with pytest.raises(ValueError, match=r"the answer is about the image b\.png, but the question"):
        phrases_scored(tmp_path, phrases, phrases, ["b.png", "c.png"])


def test_positions_of_lmms_eval_are_rejected_only_if_all_other_prompts_are_of_other_rows(
    tmp_path, logged
):
    rows = [json.loads(line) for line in lines_of(FILES / "lmms_eval.jsonl")]
    lines = [{k: row[k] for k in ("doc_id", "filtered_resps", "input")} for row in rows]
    lines[0]["input"] = "Locate: blue bus"
    lines[1]["input"] = "Locate: something else"
    file = write(tmp_path / "a.jsonl", [json.dumps(line) + "\n" for line in lines])
    assert len(scored(file).rows) == 4
    assert "the prompt of 2 of 4 answers differs from the question at the" in logged.getvalue()
    lines[1]["input"] = "Locate: red car"
    write(file, [json.dumps(line) + "\n" for line in lines])
    with pytest.raises(ValueError, match="the prompt is that of the question 'row-1', but"):
        scored(file)


def test_boxes_with_the_same_prompt_are_compared_by_their_correct_answers(tmp_path):
    answers = [json.loads(line) for line in lines_of(FILES / "llamafactory.jsonl")]
    for answer in answers:  # rounded down by the tool, as many do
        answer.update(prompt="Locate.", label=answer["label"].replace("(156,", "(155,"))
    lines = [json.dumps(answer) + "\n" for answer in answers]
    assert scored(write(tmp_path / "answers.jsonl", lines)).failures == {"no coordinates": 1}
    with pytest.raises(ValueError, match="the correct answer is that of the question 'row-3', but"):
        scored(write(tmp_path / "answers.jsonl", lines[::-1]))


def test_correct_answers_that_the_task_clips_to_the_image_are_those_of_the_rows(tmp_path):
    rows = [json.loads(line) for line in lines_of(ROWS)]
    rows[1]["box"] = [300, 200, 700, 300]  # the image is 640 pixels wide
    path = write(tmp_path / "rows.jsonl", [json.dumps(row) + "\n" for row in rows])
    answers = [json.loads(line) for line in lines_of(FILES / "llamafactory.jsonl")]
    answers[1]["label"] = "(469,417),(1000,625)"
    lines = [json.dumps({**answer, "prompt": "Locate."}) + "\n" for answer in answers]
    file = write(tmp_path / "answers.jsonl", lines)
    assert len(scored(file, path, options={"outside": "clip"}).rows) == 4


def clocks(folder, labels):
    """Score clocks, which all have the same prompt, with the labels of LLaMA-Factory."""
    times = [{"id": i, "image": "a.png", "time": f"{i + 1}:30"} for i in range(3)]
    lines = [{"prompt": "What time is it?", "predict": "1:30", "label": label} for label in labels]
    rows = write(folder / "rows.jsonl", [json.dumps(row) + "\n" for row in times])
    answers = write(folder / "answers.jsonl", [json.dumps(line) + "\n" for line in lines])
    return score(answers, task_name="clock", rows=PreparedRows(path=rows), write=False)


def test_rows_with_the_same_prompt_are_compared_by_their_correct_answers(tmp_path):
    assert len(clocks(tmp_path, ["1:30", "<pad>2:30</s>", "3:30"]).rows) == 3
    with pytest.raises(ValueError, match="the correct answer is that of the question '2', but"):
        clocks(tmp_path, ["1:30", "3:30", "2:30"])
    with pytest.raises(
        ValueError, match=r"their correct answer cannot be assigned to .*write the id"
    ):
        clocks(tmp_path, ["half past one", "half past two", "half past three"])


@pytest.mark.parametrize("text", ["7:05", " 7:05\n", "<b>7:05</b>", ""])
def test_only_end_and_padding_tokens_around_an_answer_are_removed(text):
    kept = f"<pad><|endoftext|>{text}<|im_end|> \n<|endoftext|><pad>"
    assert without_end_tokens(kept) == text
    assert without_end_tokens(text) == text


def test_a_damaged_parquet_file_is_an_error(tmp_path):
    path = write(tmp_path / "completions.parquet", ["PAR1"])
    with pytest.raises(ValueError, match=r"completions\.parquet: cannot be read \("):
        scored(path)
    time = pyarrow.array([2**62], pyarrow.timestamp("ms"))  # after the year 9999
    pyarrow.parquet.write_table(pyarrow.table({"completion": ["A"], "time": time}), path)
    with pytest.raises(ValueError, match=r"completions\.parquet: cannot be read \("):
        scored(path)
