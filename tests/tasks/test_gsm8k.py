"""GSM8K: final numbers in every accepted writing, solutions there and back, the real files."""

import functools
import json
import os
import random
import re
import time

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from importing import SHARED, json_file, outcome

from mm_numeric.answers import Number, Unreadable
from mm_numeric.evaluation.metrics.number_errors import GSM8K as SCORER
from mm_numeric.evaluation.score import score
from mm_numeric.importers import gsm8k as importers
from mm_numeric.io.files import read_rows
from mm_numeric.tasks.gsm8k import GSM8K, Solution

STEPS = "She sells 16 - 3 - 4 = <<16-3-4=9>>9 eggs.\nThat is 9 × 2 = $<<9*2=18>>18."
ROW = {"id": "test.1", "question": "How much?", "answer": f"{STEPS}\n#### 18"}


def read(row=ROW, **options):
    (example,) = GSM8K(**options).examples([("rows, line 1", row)], training=True)
    return example


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 18", "18"),
        (f"{STEPS}\n#### 18", "18"),
        ("#### 1\nNo.\n#### 18\n", "18"),
        ("####18", "18"),
        ("#### $1,000", "1000"),
        ("#### -$5", "-5"),
        ("#### $-5.50", "-5.5"),
        ("#### 18 dollars", "18"),
        ("#### 18\n\n2 more", "18"),
        ("#### .5", "0.5"),
        ("1,000", "1000"),
        ("1,234,567.5", "1234567.5"),
        ("$5", "5"),
        ("5.0", "5"),
        (" 5.\n", "5"),
        ("5%", "5"),
        ("The answer is 5.", "5"),
        ("Of 7 go 2. The answer is **$5**, not 3.", "5"),
        ("The answer is 1. Wait.\nAnswer: 5", "5"),
        ("A: 3 + 4 = 7. The answer is 7.\n\nQ: Next?\nA: The answer is 5.", "5"),
        ("#### 7\nA: 5", "5"),
        ("DNA: #### 5", "5"),
    ],
)
def test_final_numbers(text, number):
    assert GSM8K().parse(text) == Solution(number)


def test_the_steps_are_what_comes_before_the_last_final_answer():
    assert GSM8K().parse("#### 1\nNo.\n#### 18\n").steps == "#### 1\nNo."


@pytest.mark.parametrize(
    ("text", "reason", "lenient"),
    [
        ("", "empty answer", None),
        ("none", "no number", None),
        ("He has 3, so 5 in all.", "no final answer", Solution("5")),
        ("The answer is therefore 5", "no final answer", Solution("5")),
        ("5 and 6", "no final answer", Solution("6")),
        ("5\n#### none", "no number behind ####", Solution("5")),
        ("#### 1/2", "no number behind ####", Solution("1/2")),
        ("#### 1,00", "no number behind ####", Solution("0")),
        ("#### 5e3", "no number behind ####", Solution("5000")),
        pytest.param("#### " + "9" * 2000, "more than 1000 digits", None, id="many digits"),
        pytest.param("1" + ",000" * 2000, "more than 1000 digits", None, id="many thousands"),
    ],
)
def test_what_is_not_final_is_read_leniently(text, reason, lenient):
    found = GSM8K().parse(text)
    assert found == Unreadable(reason)
    assert found.lenient == lenient


@given(text=st.text("A:#answer is$,.0159-\n /e½", max_size=30) | st.text(max_size=30))
@examples(200)
def test_any_text_is_a_number_or_a_reason(text):
    found = GSM8K().parse(text)
    assert isinstance(found, Solution) or found.reason


@pytest.mark.parametrize(
    "unit", ["#### ", "A: ", "answer is ", " ", "answer\n", "1,", "1,000,", "1 ", "$", "-", "1/"]
)
def test_time_is_linear_in_the_text(unit):
    def seconds(count):
        started = time.process_time()
        for text in (unit * count, f"####{unit * count}", f"answer is {unit * count}"):
            GSM8K().parse(text)
        return time.process_time() - started

    def is_linear():  # 8 times the text; 64 times the time would be squared
        return seconds(16_000) < max(40 * seconds(2_000), 0.5)

    assert any(is_linear() for _ in range(3))


def published(completion):
    """Return what extract_answer of grade-school-math's dataset.py does."""
    match = re.search(r"#### (\-?[0-9\.\,]+)", completion)
    return match[1].strip().replace(",", "") if match else "[invalid]"


@given(number=st.integers(-(10**9), 10**9), steps=st.text("a 1.=\n", max_size=20))
@examples(200)
def test_solutions_are_read_as_the_published_code_does(number, steps):
    for text in (f"{steps}\n#### {number}", f"{steps}\n#### {number:,}"):
        assert GSM8K().parse(text) == Solution(published(text))


def test_solutions_go_there_and_back():
    task, example = GSM8K(), read()
    assert (example.id, example.image, example.prompt) == ("test.1", None, "How much?")
    written = task.format(example.answer)
    clean = "She sells 16 - 3 - 4 = 9 eggs.\nThat is 9 × 2 = $18.\n#### 18"
    assert written.text == clean
    assert [written.text[m.start : m.end] for m in written.marks] == ["18"]
    assert written.marks[0].end == len(clean)
    assert task.format(task.parse(written.text)).text == clean
    assert task.recorded(task.record(example.answer)) == example.answer
    assert task.record(task.parse(clean)) == "18"
    assert GSM8K(annotations=True).format(read(annotations=True).answer).text == ROW["answer"]
    assert GSM8K(solution=False).format(example.answer).text == "18"


@pytest.mark.parametrize(
    ("steps", "plain"),
    [
        (STEPS, "She sells 16 - 3 - 4 = 9 eggs. That is 9 * 2 = $18. #### 18"),
        ("2½ × 4 ÷ 5 − 1", "2 1/2 * 4 / 5 - 1 #### 18"),
        ("A jalapeño`s  5\u200b¢ < {√4}", "A jalapeno's 5 cents less than (sqrt 4) #### 18"),
    ],
)
def test_plain_solutions_are_one_line(steps, plain):
    task = GSM8K(plain=True)
    written = task.format(read({**ROW, "answer": f"{steps}\n#### 18"}, plain=True).answer)
    assert written.text == plain
    assert task.format(task.parse(plain)).text == plain


def test_a_number_alone_is_an_answer():
    for value in ("18", 18, "18.0", "$18", "#### 18"):
        answer = read({**ROW, "answer": value}).answer
        assert answer == Solution("18")
        assert GSM8K().format(Number(answer.text)).text == answer.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": "many"}, r"line 1: no number in the answer 'many'; end it with \"#### 18\""),
        ({"answer": "3 or 4"}, r"line 1: no number in the answer '3 or 4'"),
        ({"answer": None}, r"line 1: no number in the answer None"),
        ({"question": ""}, r'line 1: no question; each row needs "question"'),
        ({"id": None}, r'line 1: no id; each row needs an "id" of its own'),
    ],
)
def test_a_bad_row_is_one_sentence(change, message):
    with pytest.raises(ValueError, match=message):
        read({**ROW, **change})


def test_lines_become_rows(tmp_path):
    published = {"question": "How much?", "answer": ROW["answer"]}
    lines = [published, {**published, "answer": "no"}, {"answer": "5"}]
    done = outcome(importers.GSM8KImporter(), json_file(tmp_path / "test.jsonl", lines))
    assert done.rows == [ROW]
    assert done.kinds == ["answer", "text"]
    assert done.bad[0].why.startswith("no number in the answer 'no'")


def test_both_readings_are_scored(tmp_path):
    texts = ["#### 18", "so 18", "#### 17, not 18", "no", "18.0"]
    lines = [
        {"id": str(i), "text": text, "target": "18", "task": "gsm8k"}
        for i, text in enumerate(texts)
    ]
    path = tmp_path / "predictions.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    scores = score(path)
    metrics = scores.metrics()
    assert metrics["accuracy"]["value"] == pytest.approx(2 / 5)
    assert metrics["lenient_accuracy"]["value"] == pytest.approx(3 / 5)
    assert scores.failures == {"no final answer": 1, "no number": 1}


@functools.cache
def real(name):
    """Return the rows of one of the real files, or skip where it is missing."""
    path = SHARED / "gsm8k" / name
    if not path.exists():
        pytest.skip("the real files are not here")
    done = outcome(importers.GSM8KImporter(), path)
    assert done.bad == []
    return done.rows


def writings(solution):
    """Yield every accepted way to write the number that a reference ends with."""
    given = solution.rpartition("#### ")[2]
    whole = int(given.replace(",", ""))
    for number in (f"{whole}", f"{whole:,}", f"{whole}.0", f"{whole:,}.00"):
        for text in (number, f"${number}", f"-${number[1:]}" if whole < 0 else f"$ {number}"):
            yield from (text, f"The answer is {text}.", f"So.\n#### {text}", f"Q: ?\nA: {text}")
    yield solution
    yield solution.replace("\n", " ")


@pytest.mark.slow
def test_real_references_are_right_in_every_writing():
    rows = real("test.jsonl")
    assert len(rows) == 1319
    rows, task = rows[::3], GSM8K()
    targets = [read(row).answer for row in rows]
    ways = [list(writings(row["answer"])) for row in rows]
    for way in range(len(ways[0])):
        texts = [way_of[way] for way_of in ways]
        columns = SCORER.judge([task.parse(text) for text in texts], targets)
        found = {m.name: m.value(columns) for m in SCORER.metrics[:2]}
        assert found == {"accuracy": 1, "lenient_accuracy": 1}, texts[0]
    shuffled = random.Random(0).sample(targets, len(targets))
    assert SCORER.judge(shuffled, targets)["exact"].mean() < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train.jsonl.gz", "test.jsonl"])
def test_real_solutions_are_in_t5s_tokens(name):
    """Every eighth one."""
    folder = SHARED / "tokenizers" / "t5-small"
    if not folder.is_dir():
        pytest.skip("the real tokenizers are not here")
    pytest.importorskip("sentencepiece")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import T5Tokenizer

    tokenizer, task = T5Tokenizer.from_pretrained(folder), GSM8K(plain=True)
    texts = [task.format(read(row, plain=True).answer).text for row in real(name)[::8]]
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    for text, ids in zip(texts, encoded, strict=True):
        assert tokenizer.unk_token_id not in ids, text
        assert tokenizer.decode(ids) == text


def test_real_rows_come_packed_and_not(tmp_path):
    train, test = real("train.jsonl.gz"), real("test.jsonl")
    assert (len(train), len(test)) == (7473, 1319)
    assert (train[0]["id"], test[0]["id"]) == ("train.1", "test.1")
    raw = next(read_rows(SHARED / "gsm8k" / "test.jsonl"))[1]
    assert test[0] == {"id": "test.1", **raw}
