"""Charades-STA, QVHighlights and ActivityNet Captions: moments of videos."""

import json

import pytest
from importing import outcome
from PIL import Image

from mm_numeric.cli import prepare as prepare_command
from mm_numeric.importers.moments import ActivityNet, CharadesSta, QvHighlights
from mm_numeric.tasks.temporal_spans import FindSpans

TASK = FindSpans()


def test_published_files_are_imported(tmp_path, capsys):
    for video, count in (("AO8RW", 12), ("NUsG9", 1), ("v_QO", 2)):
        (tmp_path / "frames" / video).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (56, 56)).save(tmp_path / "frames" / video / f"{i}.jpg")
    options = {"frames": tmp_path / "frames", "fps": 2.0}
    text = "AO8RW 0.0 6.9##a person is putting a book on a shelf.\r\nAO8RW 7 6##x\nnothing\n"
    (tmp_path / "a.txt").write_text(f"{text}gone 0 1##y\n", encoding="utf-8")
    done = outcome(CharadesSta(**options), tmp_path / "a.txt")
    assert done.row["spans"] == [[0, 6.9]]
    assert done.row["query"] == "a person is putting a book on a shelf."
    assert done.row["frames"][:3] == ["AO8RW/0.jpg", "AO8RW/1.jpg", "AO8RW/2.jpg"]
    assert done.row["frames"][-1] == "AO8RW/11.jpg"
    words = (tmp_path / "a.txt", "--frames", options["frames"], "--fps", "2")
    prepare_command.run("charades_sta", [*map(str, words), "--out", str(tmp_path / "rows.jsonl")])
    assert f"data.train.images={tmp_path / 'frames'} task.name=" in capsys.readouterr().out
    assert done.kinds == ["spans", "line", "frames"]
    row = {"qid": 2579, "query": "A girl cooked.", "duration": 150, "vid": "NUsG9",
           "relevant_windows": [[82, 150], [4, 6]], "saliency_scores": [[3, 3, 2]]}  # fmt: skip
    lines = [row, {**row, "relevant_windows": None}, {**row, "vid": "../x"}, {"query": "x"}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = outcome(QvHighlights(**options), tmp_path / "q.jsonl")
    assert (done.row["id"], done.row["spans"]) == ("2579", [[82, 150], [4, 6]])
    assert done.kinds == ["spans", "frames", "spans"]
    times, sentences = [[0.8, 19.9], [5, 1]], [" A woman stands.", "x"]
    videos = {
        "v_QO": {"duration": 82.7, "timestamps": times, "sentences": sentences},
        "v_a": {"timestamps": [[1, 2]]},
    }
    (tmp_path / "c.json").write_text(json.dumps(videos), encoding="utf-8")
    done = outcome(ActivityNet(**options), tmp_path / "c.json")
    assert (done.row["id"], done.row["query"]) == ("v_QO-0", "A woman stands.")
    assert done.kinds == ["spans", "fields"]
    (example,) = TASK.examples([("x", done.row)], training=True)
    assert "<0.5 seconds>" in example.prompt
    with pytest.raises(ValueError, match="--fps: expected a number above 0 and below 10000, not 0"):
        CharadesSta(frames=tmp_path, fps=0)
