"""A report on numbers says what the rows say, and shows questions where others show images."""

import re

import pytest
from PIL import Image
from result_files import write_lines
from shape_reports import HOSTILE, compared, lines

from mm_numeric.evaluation.report import number_answers as questions
from mm_numeric.evaluation.report.charts import choose_styles
from mm_numeric.evaluation.report.gallery import SPREAD, WORST
from mm_numeric.evaluation.score import score

PAIRS = [
    ("3", "3", "interpolation"),
    ("30", "29", "interpolation"),
    ("200", "199", "interpolation"),
    ("7", "0", "interpolation"),
    ("x", "5", "extrapolation"),
    ("-1000000", "12", "extrapolation"),
    ("1/3", "2/6", "extrapolation"),
]


def scored(folder, answers):
    """Score answers to the targets of ``PAIRS``, and return the rows of scores.jsonl."""
    rows = [
        {
            "id": f"r{i}",
            "task": "numbers",
            "prompt": f"Question {i}?",
            "text": text,
            "target": target,
            "buckets": {"category": category},
        }
        for i, (text, (_, target, category)) in enumerate(zip(answers, PAIRS, strict=True))
    ]
    score(write_lines(folder / "predictions.jsonl", rows))
    return lines(folder / "scores.jsonl")


@pytest.fixture
def runs(tmp_path):
    """Two objectives: one that answers as PAIRS say, and one that is always right."""
    right = [target for _, target, _ in PAIRS]
    first = scored(tmp_path / "a", [text for text, _, _ in PAIRS])
    return {("ce", 0): first, ("ntl_was", 0): scored(tmp_path / "b", right)}


@pytest.mark.parametrize("task", ["numbers", "arithmetic", "mathematics", "rjokes"])
def test_a_report_without_images_shows_the_texts(runs, tmp_path, task):
    page, twin = compared(tmp_path / "report", task, runs)
    assert "| exact | 28.6% | 100.0% |" in twin  # 2 of 7
    assert "| up to 1% off | 14.3% | 0.0% |" in twin
    assert "| up to 10% | 14.3% | 0.0% |" in twin
    assert "| farther off | 28.6% | 0.0% |" in twin  # 7 for 0, and a million for 12
    assert "| unreadable | 14.3% | 0.0% |" in twin
    assert "| interpolation (4) | 25.0% | 100.0% |" in twin
    assert "| 3 (1) | 0.0% | 100.0% |" in twin  # digits
    assert "| Question 5? | 12 | -1000000 | **12** |" in twin
    assert "| Question 4? | 5 | “x” | **5** |" in twin
    assert twin.index("Question 5?") < twin.index("Question 4?") < twin.index("Question 0?")
    for text in ("Question 5?", "-1000000", "“x”", "2/6"):
        assert text in page
    assert "<img" not in page
    assert "All seeds" not in twin


def test_questions_about_images_are_shown_with_them(tmp_path):
    Image.new("RGB", (20, 16), (90, 90, 200)).save(tmp_path / "a.png")
    rows = scored(tmp_path, [text for text, _, _ in PAIRS])
    for row, image in zip(rows, ["a.png", "gone.png", None] * 3, strict=False):
        row["image"] = image
    styles = choose_styles(["ce"], "ce", None)
    page = str(questions.questions_section(tmp_path, styles, {("ce", 0): rows}).content.html)
    used = [page.index(f'href="#{name}"') for name in re.findall(r'<g id="(image\d)">', page)]
    assert len(used) == 5
    assert page.count("data:image/png") == 3
    assert page.count("no image: gone.png") == 2
    assert "answered 7, true 0" in page


def test_what_a_model_writes_is_harmless(tmp_path):
    rows = scored(tmp_path / "a", [HOSTILE] * len(PAIRS))
    for row in rows:
        row["prompt"] = HOSTILE
    page, twin = compared(tmp_path / "report", "numbers", {("ce", 0): rows})
    assert "<script" not in page + twin
    assert not re.search(r"\[x\]\(http", twin)


def test_rows_of_another_scorer_are_rejected(runs, tmp_path):
    del runs["ce", 0][2]["log_error"]
    message = r"scores\.jsonl, line 3: the row cannot be shown \(KeyError\('log_error'\)"
    with pytest.raises(ValueError, match=message):
        compared(tmp_path / "report", "numbers", runs)


def test_nothing_scored_is_no_chapter(tmp_path):
    styles = choose_styles(["ce"], "ce", None)
    assert questions.sections(tmp_path, styles, {("ce", 0): []}) == []


def test_many_rows_are_shown_in_part(tmp_path):
    rows = []
    for i in range(60):
        row = {"id": f"{i:02d}", "target": "50", "text": str(50 + i), "parsed": str(50 + i)}
        rows.append({**row, "reason": None, "task": "numbers"})
    score(write_lines(tmp_path / "predictions.jsonl", rows))
    styles = choose_styles(["ce"], "ce", None)
    section = questions.questions_section(
        tmp_path, styles, {("ce", 0): lines(tmp_path / "scores.jsonl")}
    )
    shown = re.findall(r"^\| (\d\d) \|", section.content.markdown, re.MULTILINE)
    assert shown[:WORST] == [str(n) for n in range(59, 51, -1)]
    assert len(shown) == WORST + SPREAD
    assert shown[-1] == "00"
