"""Frames of videos: those that a player shows at the times of the rows."""

import json

import numpy as np
import pytest
from importing import outcome
from PIL import Image

from mm_numeric.cli import main as cli
from mm_numeric.importers.importer import InvalidRowError
from mm_numeric.importers.moments import CharadesSta
from mm_numeric.importers.video_frames import _open, extract_frames
from mm_numeric.tasks.temporal_spans import FindSpans

FPS, COUNT, STEP = 12, 30, 8
UPRIGHT = "00010000" + 3 * "00000000" + "00010000"
CLOCKWISE = "00000000" + "00010000" + "00000000" + "ffff0000" + "00000000"


def make_video(path, start=0, **options):
    """Write a video whose i-th frame is as bright as i and has a darker right half.

    ``start`` is the time of the first frame, in frames.
    """
    av = pytest.importorskip("av", reason="PyAV is not installed with the tests")
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("mpeg4", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for i in range(COUNT):
            pixels = np.full((48, 64, 3), STEP * i, np.uint8)
            pixels[:, 32:] //= 2
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = start + i
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def shown(path):
    """Return the number of the frame by the brightness of its left half."""
    return np.asarray(Image.open(path).convert("L"))[:, :24].mean() / STEP


def test_frames_are_those_shown_at_their_times(tmp_path):
    make_video(tmp_path / "AO8RW.mp4")
    for fps, most in ((2, None), (5, None), (10, 4)):
        folder = tmp_path / f"{fps}"
        times = extract_frames(tmp_path / "AO8RW.mp4", folder, fps, most)
        wanted = [i / fps for i in range(100) if i / fps < COUNT / FPS - 1e-9]
        if most:
            wanted = [wanted[round(i * (len(wanted) - 1) / (most - 1))] for i in range(most)]
        assert times == pytest.approx(wanted, abs=5e-4)
        for time, path in zip(times, sorted(folder.iterdir()), strict=True):
            last = max(i for i in range(COUNT) if i / FPS <= time + 1e-6)
            assert shown(path) == pytest.approx(last, abs=0.5)
    head, track = (tmp_path / "AO8RW.mp4").read_bytes().split(b"tkhd", 1)  # of the track
    track = track.replace(bytes.fromhex(UPRIGHT), bytes.fromhex(CLOCKWISE), 1)
    (tmp_path / "turned.mp4").write_bytes(head + b"tkhd" + track)
    _, images = _open(tmp_path / "turned.mp4")
    *_, image = images([0.0, 2.0])
    assert image.size == (48, 64)
    bright, dark = (np.asarray(image)[half].mean() for half in (slice(24), slice(40, 64)))
    assert bright > 1.5 * dark  # the left half is above


def test_a_video_may_not_begin_at_0(tmp_path):
    for name in ("late.mp4", "late.mkv"):
        make_video(tmp_path / name, start=24)
        times = extract_frames(tmp_path / name, tmp_path / f"{name}.frames", 2, None)
        assert times == [0, 0.5, 1, 1.5, 2]


def test_a_recording_without_a_length_is_an_error(tmp_path):
    """Not a video with only one frame."""
    make_video(tmp_path / "live.mkv", live="1")
    with pytest.raises(InvalidRowError, match=r"does not state its length; copy it with `ffmpeg"):
        extract_frames(tmp_path / "live.mkv", tmp_path / "frames", 2, None)


def test_rows_of_videos_have_the_seconds_of_their_frames(tmp_path, capsys):
    make_video(tmp_path / "AO8RW.mp4")
    (tmp_path / "bad.mp4").write_text("no video")
    lines = "AO8RW 0.0 1.5##a person sits.\nbad 0 1##x\nGONE 0 1##x\n../AO8RW 0 1##x\n"
    (tmp_path / "test.txt").write_text(lines, encoding="utf-8")
    given = {"frames": tmp_path / "frames", "fps": 4.0, "videos": tmp_path}
    done = outcome(CharadesSta(**given, max_frames=3), tmp_path / "test.txt")
    assert done.kinds == ["video", "video", "frames"]
    assert done.row["seconds"] == [0, 1.25, 2.25]  # of 0, .25, ... 2.25
    (example,) = FindSpans().examples([("x", done.row)], training=True)
    assert example.prompt.startswith("<0.0 seconds>")
    assert "<1.2 seconds>" in example.prompt
    again = outcome(CharadesSta(**given), tmp_path / "test.txt")
    assert again.kinds == ["frames", "video", "video", "frames"]  # ten frames, not three
    words = ["--frames", tmp_path / "f", "--fps", 4, "--videos", tmp_path]
    command = [
        "prepare",
        "charades_sta",
        tmp_path / "test.txt",
        *words,
        "--out",
        tmp_path / "r.jsonl",
    ]
    assert cli.main([str(word) for word in command]) == 0
    assert len(json.loads((tmp_path / "r.jsonl").read_text("utf-8"))["frames"]) == 10


def test_without_a_reader_the_frames_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("mm_numeric.importers.video_frames.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"--videos needs PyAV.*pip install av.*ffmpeg"):
        CharadesSta(frames=tmp_path, fps=2, videos=tmp_path)
    with pytest.raises(ValueError, match=r"--max-frames: expected .* next to --videos"):
        CharadesSta(frames=tmp_path, fps=2, max_frames=3)
