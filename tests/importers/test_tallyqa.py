"""TallyQA: counts, and simple and complex questions."""

from importing import json_file, outcome

from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import load_examples
from mm_numeric.importers.prepare import prepare
from mm_numeric.importers.tallyqa import TallyQA
from mm_numeric.tasks.counting import Counting

TALLY = {
    "answer": 4,
    "data_source": "imported_genome",
    "image": "VG_100K_2/2410408.jpg",
    "image_id": 92410408,
    "issimple": False,
    "question": "How many headlights does the black bus have?",
    "question_id": 30095774,
}


def test_tallyqa(tmp_path):
    rows = [TALLY, {**TALLY, "question_id": 2, "issimple": True}]
    rows += [{**TALLY, "question_id": 3, "answer": "four"}, {**TALLY, "issimple": 1}]
    train = {name: TALLY[name] for name in ("answer", "image", "question")}
    path = json_file(tmp_path / "test.json", [*rows, train])
    found = outcome(TallyQA(), path)
    assert found.rows[0] == {
        "id": "30095774",
        "image": "VG_100K_2/2410408.jpg",
        "question": "How many headlights does the black bus have?",
        "answer": 4,
        "category": "complex",
    }
    assert [row.get("category") for row in found.rows] == ["complex", "simple", None]
    assert found.kinds == ["answer", "issimple"]
    done = prepare("tallyqa", TallyQA(), [path], tmp_path / "rows.jsonl")
    assert done.record["task"] == "counting"
    (tmp_path / "VG_100K_2").mkdir()
    (tmp_path / "VG_100K_2/2410408.jpg").touch()
    source = DataSource(path=str(tmp_path / "rows.jsonl"))
    read = load_examples(Counting(), source, tmp_path, training=False)
    assert [e.buckets for e in read] == [{"category": "complex"}, {"category": "simple"}, {}]
