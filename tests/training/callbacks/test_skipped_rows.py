"""Skipped rows are counted once, over all ranks."""

from mm_numeric.training.callbacks.skipped_rows import SkippedRows


class OneRank:
    def exchange(self, found=None):
        return [] if found is None else [found]


def test_rows_are_counted_once_and_their_reason_is_logged(capsys):
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
    assert rows.ids == {"a", "b"}
