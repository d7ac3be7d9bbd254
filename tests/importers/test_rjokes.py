"""Jokes with scores, from text files."""

import gzip

import pytest
from importing import outcome

from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import load_examples
from mm_numeric.importers.prepare import prepare
from mm_numeric.importers.rjokes import RJokesImporter
from mm_numeric.tasks.number_questions import RJokes


def test_jokes(tmp_path):
    text = "3\tWhy \\\t not?\n12\tno\n\nx\n0\tSo.\u2028Yes\n"
    (tmp_path / "dev.tsv.gz").write_bytes(gzip.compress(text.encode()))
    found = outcome(RJokesImporter(), tmp_path / "dev.tsv.gz")
    assert found.rows == [
        {"id": "dev-1", "question": "Why \t not?", "answer": 3},
        {"id": "dev-5", "question": "So.\u2028Yes", "answer": 0},
    ]
    assert found.kinds == ["score", "line"]
    (tmp_path / "bad.gz").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"bad\.gz: cannot be read"):
        outcome(RJokesImporter(), tmp_path / "bad.gz")


def test_their_task_reads_them(tmp_path):
    (tmp_path / "dev.tsv").write_text("3\tWhy?\n", encoding="utf-8")
    out = tmp_path / "rows.jsonl"
    prepare("rjokes", RJokesImporter(), [tmp_path / "dev.tsv"], out)
    source = DataSource(path=str(out))
    assert load_examples(RJokes(), source, tmp_path, training=True)[0].answer.value == 3
