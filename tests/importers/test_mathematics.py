"""DeepMind's mathematics: text files and JSON lines."""

from collections import Counter

import pytest
from importing import SHARED, json_file, outcome, text_folder

from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import load_examples
from mm_numeric.importers.mathematics import MathematicsImporter
from mm_numeric.importers.prepare import prepare
from mm_numeric.tasks.number_questions import Mathematics

LINES = "What is 2 + 3?\n5\nWhich is it?\nb\nWhat is 1/2 + 1?\n3/2\n"


@pytest.fixture
def dataset(tmp_path):
    """A data set of two folders."""
    root = tmp_path / "v1.0"
    root.mkdir()
    text_folder(root / "train-easy", arithmetic__txt=LINES, comparison__txt="Is 1 > 2?\nFalse\n")
    text_folder(root / "extrapolate", arithmetic__txt=LINES)
    return root


def test_lines_are_questions_and_answers(dataset):
    found = outcome(MathematicsImporter(), dataset)
    assert [row["id"] for row in found.rows] == [
        "extrapolate.arithmetic.1",
        "extrapolate.arithmetic.3",
        "train-easy.arithmetic.1",
        "train-easy.arithmetic.3",
    ]
    assert found.rows[1] == {
        "id": "extrapolate.arithmetic.3",
        "question": "What is 1/2 + 1?",
        "answer": "3/2",
        "category": "extrapolation",
        "module": "arithmetic",
    }
    assert found.rows[2]["category"] == "train-easy"
    assert found.left_out == {"questions without a numeric answer": 3}


def test_modules_and_regimes_can_be_chosen(dataset):
    assert len(outcome(MathematicsImporter(regimes="extrapolate"), dataset).rows) == 2
    assert len(outcome(MathematicsImporter(modules="arithmetic"), dataset).rows) == 4
    assert outcome(MathematicsImporter(modules="comparison"), dataset).rows == []
    with pytest.raises(ValueError, match="no file has modules algebra and regimes any"):
        MathematicsImporter(modules="algebra").files([dataset])


def test_a_question_without_an_answer_is_a_bad_line(tmp_path):
    folder = text_folder(tmp_path / "interpolate", mul__txt=LINES + "What?", bad__txt=b"\xff")
    found = outcome(MathematicsImporter(), folder)
    assert len(found.rows) == 2
    assert sorted(found.kinds) == ["encoding", "lines"]


def test_json_lines(tmp_path):
    row = {"regime": "interpolate", "module": "m", "question": "What?", "answer": "-0.25"}
    path = json_file(tmp_path / "a.jsonl", [row, {**row, "answer": 3}, {**row, "module": "n"}])
    found = outcome(MathematicsImporter(modules="m"), path)
    assert (found.row["category"], found.row["answer"]) == ("interpolation", "-0.25")
    assert "answer must be a non-empty text, not 3" in found.why


def test_its_task_reads_them(dataset, tmp_path):
    out = tmp_path / "rows.jsonl"
    done = prepare("mathematics", MathematicsImporter(), [dataset], out)
    assert done.record["counts"] == {"rows": 4}
    source = DataSource(path=str(out))
    examples = load_examples(Mathematics(), source, tmp_path, training=True)
    assert examples[0].buckets == {"category": "extrapolation", "module": "arithmetic"}


@pytest.mark.skipif(not SHARED.is_dir(), reason="no real files here")
def test_real_questions():
    found = outcome(MathematicsImporter(), SHARED / "mathematics" / "sample.jsonl")
    assert len(found.rows) + sum(found.left_out.values()) == 2300
    assert sum("/" in row["answer"] for row in found.rows) == 311
    assert len(found.rows) == 1772 + 311
    categories = Counter(row["category"] for row in found.rows)
    assert set(categories) == {"train", "interpolation", "extrapolation"}
