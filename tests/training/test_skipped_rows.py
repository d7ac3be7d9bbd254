"""Skipped rows in a checkpoint: saved, loaded, and read under the file name of older versions."""

import pytest

from mm_numeric.training.skipped_rows import SkippedRows


class OneRank:
    def exchange(self, found=None):
        return [] if found is None else [found]


def test_rows_are_counted_once_and_their_reason_is_logged(tmp_path, capsys):
    rows = SkippedRows(OneRank())
    rows.add({"a": "rows.jsonl, line 1: broken"})
    rows.add({"a": "rows.jsonl, line 1: broken", "b": "rows.jsonl, line 2: broken"})
    assert rows.count() == 2
    rows.add({"a": "rows.jsonl, line 1: broken"})
    assert rows.count() == 2
    assert sorted(capsys.readouterr().err.splitlines()) == [
        "mm-numeric: row skipped: rows.jsonl, line 1: broken",
        "mm-numeric: row skipped: rows.jsonl, line 2: broken",
    ]
    rows.save(tmp_path)
    loaded = SkippedRows(OneRank())
    loaded.load(tmp_path)
    assert loaded.ids == {"a", "b"}


@pytest.mark.parametrize(("name", "ids"), [("left_out.json", {"r0", "r4"}), ("none.json", set())])
def test_checkpoints_of_older_versions_are_read(tmp_path, name, ids):
    (tmp_path / name).write_text('["r0", "r4"]\n', encoding="utf-8")
    rows = SkippedRows(OneRank())
    rows.load(tmp_path)
    assert rows.ids == ids
