"""The chapters on shapes say what the rows say, and draw them over their images."""

import html
import re

import numpy as np
import pytest
from browser import drawn_in_a_browser
from PIL import Image
from result_files import write_lines
from shape_reports import (
    FRAME,
    HOSTILE,
    compared,
    counted,
    one_box,
    pages,
    scenes,
    table,
    twin_table,
)

from mm_numeric.evaluation.report import shape_gallery as galleries
from mm_numeric.evaluation.report.gallery import data_url, open_upright
from mm_numeric.evaluation.report.shape_sections import MEAN_BOX, IouStatistics
from mm_numeric.evaluation.score import score
from mm_numeric.tasks.text_detection import TextDetection


@pytest.mark.slow
@pytest.mark.parametrize("kind", [scenes, pages])
def test_both_forms_have_the_same_numbers(tmp_path, kind):
    keys = {("ce", 0): 1, ("ce", 1): 1.5, ("emd", 0): 0, ("emd", 1): 0.5}
    task = "grounding" if kind is scenes else "text_detection"
    page, twin = compared(tmp_path, task, kind(tmp_path, keys))
    chapters = {"overlap": "Overlap (IoU)", "sizes": "By object size"}
    if kind is pages:
        chapters["broken"] = "Partly invalid answers"
    for anchor, title in chapters.items():
        shown = table(page, anchor)
        assert shown == twin_table(twin, title)
        assert len(shown) > 3
    assert [row[0] for row in table(page, "overlap")] == ["objective", "ce", "emd", "mean box"]
    for row in twin_table(twin, "Answers on the image")[1:]:
        assert f"{html.escape(row[-1])} " in page or f"IoU {row[-1]}" in page


def test_shares_and_means_are_those_of_all_boxes(tmp_path):
    target = [0.0, 0.0, 40.0, 20.0]
    answers = [(target, 1.0), ([20.0, 0.0, 60.0, 20.0], 1 / 3), ([50.0, 50.0, 60.0, 60.0], 0.0)]
    rows = [one_box(str(i), target, *answer) for i, answer in enumerate([*answers, (None, 0.0)])]
    rows.append(one_box("4", target, [0.0, 0.0, 40.0, 10.0], 0.5))
    page, twin = compared(tmp_path, "grounding", {("ce", 0): rows})
    assert table(page, "overlap") == [
        ["objective", "Acc@0.5", "Acc@0.75", "Acc@0.9", "mean IoU", "unreadable", "no overlap"],
        ["ce", "40.0%", "20.0%", "20.0%", "0.367", "20.0%", "20.0%"],
        ["mean box", "100.0%", "100.0%", "100.0%", "1.000", "0.0%", "0.0%"],
    ]
    assert "| 0.00 to 0.05 | 0.0% |" in twin
    for line in ("| 0.30 to 0.35 | 20.0% |", "| 0.50 to 0.55 | 20.0% |", "| 0.95 to 1.00 | 20.0%"):
        assert line in twin
    assert table(page, "sizes")[0] == ["objective", "Acc@0.5, small", "mean IoU, small"]
    assert "below 32 × 32 pixels: 5 in the test rows" in page


def test_an_equal_polygon_is_in_the_last_bar_whatever_the_rounding_errors_of_its_area():
    ious = np.array([np.nextafter(1, 2), 1.0, np.nextafter(1, 0), 0.0])
    sizes, parsed = np.array(["large"] * 4), np.ones(4, dtype=np.bool_)
    found = IouStatistics(style=MEAN_BOX, ious=ious, parsed=parsed, sizes=sizes, answers=4)
    assert found.bins() == [0.0, 0.25, *[0.0] * 19, 0.75]


def test_the_mean_box_is_what_a_model_gets_that_does_not_look(tmp_path):
    targets = [[0.0, 0.0, 10.0, 10.0], [10.0, 10.0, 20.0, 20.0]]
    rows = [one_box(str(i), target, None, 0.0) for i, target in enumerate(targets)]
    page, twin = compared(tmp_path, "grounding", {("ce", 0): rows})
    assert table(page, "overlap")[2][:5] == ["mean box", "0.0%", "0.0%", "0.0%", "0.143"]  # 25/175
    assert "The mean box, [5, 5, 15, 15] in pixels" in page
    assert "The constant answer among the guesses is another one: of the most" in page
    assert r"The mean box, \[5, 5, 15, 15\] in pixels" in twin
    words = [[{"box": targets[0]}, {"box": targets[0]}], [{"box": targets[0], "ignore": True}]]
    rows = [
        counted({"id": str(i), "image": None, "target": target, "text": "", "parsed": []})
        | {"reason": None}
        for i, target in enumerate(words)
    ]
    page, _ = compared(tmp_path / "words", "text_detection", {("ce", 0): rows})
    # once in each image: one of two words is found, and what covers an ignored one is no mistake
    assert table(page, "overlap")[2][:6] == ["mean box", *["50.0%"] * 3, "0.500", "100.0%"]
    assert "recall@0.5 50.0%, precision@0.5 100.0% and a mean IoU of 0.500" in page


def test_each_size_has_its_own_figures(tmp_path):
    small, large = [0.0, 0.0, 9.0, 9.0], [0.0, 0.0, 200.0, 200.0]
    rows = [one_box("0", small, [0.0, 0.0, 9.0, 3.0], 1 / 3), one_box("1", large, large, 1.0)]
    page, _ = compared(tmp_path, "grounding", {("ce", 0): rows})
    assert table(page, "sizes")[:2] == [
        [
            "objective",
            *(f"{name}, {s}" for name in ("Acc@0.5", "mean IoU") for s in ("small", "large")),
        ],
        ["ce", "0.0%", "100.0%", "0.333", "1.000"],
    ]


@pytest.mark.slow
def test_precision_by_size_is_there_where_the_scorer_says_it(tmp_path):
    runs = pages(tmp_path, [("ce", 0)])
    page, _ = compared(tmp_path, "text_detection", runs)
    assert table(page, "sizes")[0][-1] == "mean IoU, medium"
    for row in runs["ce", 0]:
        row |= {"paired_small": 1, "counted_small": 2, "paired_medium": 0, "counted_medium": 0}
    page, _ = compared(tmp_path, "text_detection", runs)
    assert table(page, "sizes")[0][-2:] == ["precision@0.5, small", "precision@0.5, medium"]
    assert [row[-2:] for row in table(page, "sizes")[1:]] == [["50.0%", "–"], ["–", "–"]]


def test_the_scorer_writes_the_columns_of_precision_by_size(tmp_path):
    truth = {"id": "a", "task": "text_detection", "target": [{"box": [1, 1, 9, 9]}], "text": ""}
    row = {**truth, "frame": FRAME.to_dict()}
    (scored,) = score(write_lines(tmp_path / "predictions.jsonl", [row]), write=False).rows
    for size in ("small", "medium", "large"):
        assert {f"paired_{size}", f"counted_{size}"} <= scored.keys()


def test_cut_and_malformed_answers_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(TextDetection, "scorer", "sums:EXACT", raising=False)
    box = {"box": [1, 1, 9, 9]}
    write = {"task": "text_detection", "prompt": "Where?", "target": [box]}
    whole = FRAME.write(TextDetection().recorded([box]).items).text
    texts = [whole, whole + whole[:20], whole.replace("(", "(1,", 1), "none"]
    texts.append(whole + texts[2])
    rows = [
        {**write, "id": str(i), "text": text, "frame": FRAME.to_dict()}
        for i, text in enumerate(texts)
    ]
    scored = score(write_lines(tmp_path / "predictions.jsonl", rows), write=False).rows
    assert [(r.get("cut"), r.get("malformed"), r["prompt"]) for r in scored] == [
        (False, 0, "Where?"),
        (True, 0, "Where?"),
        (None, None, "Where?"),  # nothing else is in it: it has a reason
        (False, 0, "Where?"),
        (False, 1, "Where?"),
    ]
    assert scored[2]["reason"] == "an odd number of coordinates"
    scored = [counted(row) for row in scored]
    page, twin = compared(tmp_path, "text_detection", {("ce", 0): scored})
    assert "their valid shapes were scored. Malformed: not" in twin  # one seed
    assert table(page, "broken")[1:4] == [
        ["answers", "5"],
        ["answers that end within a shape", "1"],
        ["answers with malformed shapes", "1"],
    ]
    assert "1 of 1 found, truncated" in page
    assert "1 of 1 found, 1 malformed" in page


@pytest.mark.slow
def test_every_image_is_in_the_page_once_worst_first_and_the_best_last(tmp_path):
    keys = {("ce", 0): 3, ("ce", 1): 0, ("emd", 0): 2, ("rps", 0): 1}
    runs = scenes(tmp_path, keys, count=40)
    runs["rps", 0] += [{**runs["rps", 0][0], "id": "again", "iou": 1.0}]  # of the first image
    page, twin = compared(tmp_path, "grounding", runs)
    shown = [int(rank) for rank in re.findall(r"(\d+) of 40 from the worst", page)]
    assert shown == [*range(1, 9), 16, 24, 32, 40]
    assert page.count("data:image/jpeg") == 12
    assert page.count('<figure class="tile') == 12 * 3
    means = [float(mean) for mean in re.findall(r"mean IoU (\d\.\d\d)", page)]
    assert means == sorted(means)
    assert "The 8 worst of 40 images, and 4 spread evenly over the rest" in twin
    assert "each with the answers of its worst seed." in twin
    assert set(re.findall(r"seed \d", page.split('id="gallery"')[1])) == {"seed 0"}
    assert [float(row[-1]) for row in twin_table(twin, "Answers on the image")[1:]] == means


def test_shapes_are_drawn_where_they_are(tmp_path):
    Image.new("RGB", (200, 100), (90, 90, 90)).save(tmp_path / "x.png")
    row = one_box("x", [20.0, 10.0, 60.0, 50.0], [30.0, 10.0, 70.0, 50.0], 0.6)
    row |= {"image": str(tmp_path / "x.png"), "prompt": HOSTILE}
    page, _ = compared(tmp_path, "grounding", {("ce", 0): [row]})
    assert 'viewBox="-3.0 -3.0 206.0 106.0"' in page
    assert 'd="M20.0 10.0L60.0 10.0L60.0 50.0L20.0 50.0Z"' in page
    assert 'd="M30.0 10.0L70.0 10.0L70.0 50.0L30.0 50.0Z"' in page
    assert "IoU 0.60</title>" in page
    assert "The only image" in page


def test_among_several_shapes_what_was_missed_and_what_is_wrong_is_filled(tmp_path):
    boxes = [[at, 0.0, at + 20, 20.0] for at in (0.0, 30.0, 60.0, 90.0)]
    drawn = [f"M{a:.1f} 0.0L{b:.1f} 0.0L{b:.1f} 20.0L{a:.1f} 20.0Z" for a, _, b, _ in boxes]
    row = {"id": "x", "image": None, "text": "", "reason": None}
    row |= {"target": [{"box": boxes[0]}, {"box": boxes[1]}, {"box": boxes[3], "ignore": True}]}
    row |= {"parsed": [{"box": boxes[0]}, {"box": boxes[2]}, {"box": boxes[3]}]}
    page, _ = compared(tmp_path, "text_detection", {("ce", 0): [counted(row)]})
    assert f'class="missed" d="{drawn[1]}"' in page
    assert re.search(rf'id="image0a0w" [^>]* d="{drawn[2]}"', page)
    assert re.search(rf'id="image0a0r" [^>]* d="{drawn[0]}{drawn[3]}"', page)
    assert re.search(rf'id="image0t" [^>]* d="{drawn[0]}{drawn[1]}"', page)
    assert "1 of 2 found, 1 too many</title>" in page
    assert "ignored by the metric" in page


def labelled(id_, label, *answers, **more):
    """Return a scored row with one true box, and answers: (label, box)."""
    truth = {"box": [20.0, 30.0, 80.0, 90.0], "label": label}
    parsed = [{"box": box, "label": own} for own, box in answers]
    row = {"id": id_, "image": None, "target": [truth], "text": "", "parsed": parsed}
    return counted(row | {"reason": None} | more)


def test_labels_and_confidences_are_drawn_at_their_boxes(tmp_path):
    Image.new("RGB", (240, 200)).save(tmp_path / "x.png")
    answers = [("dog", [20.0, 30.0, 80.0, 90.0]), ("<b>\x00", [100.0, 50.0, 160.0, 198.0])]
    more = {"image": str(tmp_path / "x.png"), "scores": [0.914, 0.5]}
    page, _ = compared(
        tmp_path, "detection", {("ce", 0): [labelled("7", "a dog", *answers, **more)]}
    )
    tags = re.findall(
        r'<g class="tag-(\w+)"><rect x="([\d.]+)" y="([\d.]+)".*?textLength.*?>(.*?)</text>', page
    )
    high = 1.4 * 11  # the font has 11 pixels
    assert [(css, float(x), text) for css, x, _, text in tags] == [
        ("true", 20, "a dog"),
        ("answered", 20, "dog 0.91"),
        ("answered", 100, "&lt;b&gt;� 0.50"),
    ]
    # above the true box, below the answer, and within the image
    assert [float(y) for _, _, y, _ in tags] == pytest.approx(
        [30 - high, 90, 203.6 - high], abs=0.01
    )
    assert "true label</span>" in page
    assert "x.png<small>id 7 · mean F1" in page
    page, _ = compared(tmp_path, "detection", {("ce", 0): [labelled("x", "")]})
    assert 'class="tag-true"><rect' not in page
    assert "true label</span>" not in page


def test_labels_do_not_cover_each_other(tmp_path):
    answers = [("dog", [20.0, 30.0, 80.0, 90.0])] * 9
    page, _ = compared(tmp_path, "detection", {("ce", 0): [labelled("x", "dog", *answers)]})
    places = re.findall(r'class="tag-answered"><rect x="([\d.]+)" y="([\d.]+)"', page)
    assert 1 < len(places) == len({*places}) < 9
    assert f"{9 - len(places)} labels not drawn</title>" in page


def test_equal_scores_take_turns_by_class(tmp_path):
    rows = [labelled(f"cat{i}", "cat") for i in range(20)]
    rows += [labelled(f"{name}", name) for name in ("dog", "owl")]
    page, _ = compared(tmp_path, "detection", {("ce", 0): rows[::-1]})
    shown = re.findall(r'<p class="asked">(\w+)<small>mean F1 0.0% · (\d+) of 22', page)
    names = ["cat0", "dog", "owl", "cat1", "cat10", "cat11", "cat12", "cat13"]
    assert [name for name, _ in shown[:8]] == names
    assert [int(rank) for _, rank in shown] == [*range(1, 9), 11, 15, 18, 22]


def test_an_image_with_small_words_is_cut_to_where_they_are(tmp_path):
    image = Image.new("RGB", (1000, 500), (0, 0, 255))
    image.paste((255, 0, 0), (700, 300, 800, 350))
    image.save(tmp_path / "x.png")
    row = {"id": "x", "image": str(tmp_path / "x.png"), "text": "", "reason": None}
    row |= {"target": [{"box": [700, 300, 800, 350]}], "parsed": [{"box": [850, 200, 900, 240]}]}
    near = counted(row | {"parsed": []})
    page, twin = compared(tmp_path / "near", "text_detection", {("ce", 0): [near]})
    # 60 pixels around it, in the proportions of the image
    assert '<image x="580" y="240" width="340" height="170"' in page
    assert "Images with small shapes are cropped." in twin
    page, twin = compared(tmp_path / "far", "text_detection", {("ce", 0): [counted(row)]})
    assert '<image x="460" y="140" width="540" height="270"' in page
    assert "1 too many" in page
    wide = counted(row | {"parsed": [{"box": [10, 10, 90, 40]}]})
    page, twin = compared(tmp_path / "wide", "text_detection", {("ce", 0): [wide]})
    assert '<image x="0" y="0" width="1000" height="500"' in page
    assert "are cropped" not in twin


def test_an_image_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 10)).save(tmp_path / "x.jpg", exif=exif)
    image = open_upright(tmp_path / "x.jpg")
    assert image.size == (10, 30)
    assert data_url(image, 20).startswith("data:image/png;base64,")
    assert image.size == (10, 30)


def test_what_could_not_be_read_is_said_with_its_reason(tmp_path):
    page, twin = compared(tmp_path, "grounding", scenes(tmp_path, {("ce", 0): 1, ("emd", 0): 0}))
    words = "not read: no coordinates in “&lt;script&gt;alert("
    assert page.count(f"{words}&#39;[1, 2]&#39;)&lt;/script&gt;") > 3
    assert "not read: no coordinates in “&lt;script&gt;alert('\\[1, 2\\]')" in twin
    for text in (page, twin):
        assert "<script" not in text
        assert "\x00" not in text
        assert "\u202e" not in text
    assert not re.search(r"(?<!\\)\]\(", twin)


def test_names_of_a_stranger_cannot_leave_their_place(tmp_path):
    more = {"prompt": HOSTILE, "image": HOSTILE}
    rows = [one_box(HOSTILE + str(i), [0, 0, 9, 9], [0, 0, 9, 8], 0.9, **more) for i in range(3)]
    rows = [row | {"prompt": f"{i} {HOSTILE}", "image": f"{i}{HOSTILE}"} for i, row in
            enumerate(rows)]  # fmt: skip
    page, twin = compared(tmp_path, "grounding", {('a"b|<i>', 0): rows})
    for text in (page, twin.replace('a"b\\|<i>', "")):
        assert "<script" not in text
        assert "<i>" not in text
        assert "\x00" not in text
    assert {len(row) for row in twin_table(twin, "Answers on the image")} == {4}
    assert "3 of the 3 images could not be opened" in page
    assert page.count(">no image: ") == 3


@pytest.mark.slow
def test_no_readable_answer_at_all_and_no_image(tmp_path):
    rows = [one_box(str(i), [0, 0, 40, 40], None, 0.0) for i in range(3)]
    page, twin = compared(tmp_path, "grounding", {("ce", 0): rows})
    assert table(page, "overlap")[1][-2:] == ["100.0%", "0.0%"]
    assert page.count(">no image<") == 3
    assert "3 of the 3 images could not be opened" in twin
    drawn_in_a_browser(page, tmp_path)


def test_pages_without_words_and_one_objective(tmp_path):
    row = {"image": None, "target": [], "text": "none", "parsed": [], "reason": None}
    rows = [
        counted(row | {"id": "right"}),
        counted(row | {"id": "x", "parsed": [{"box": [0, 0, 5, 5]}]}),
    ]
    rows.append(counted(row | {"id": "unread", "parsed": None, "reason": "empty answer"}))
    page, twin = compared(tmp_path, "text_detection", {("ce", 4): rows})
    assert "There are no true shapes in these images." in twin
    assert "All seeds" not in twin
    assert "By object size" not in twin
    assert "nothing to be found, 1 too many" in page
    assert table(page, "overlap")[1:] == [["ce", "–", "–", "–", "–", "0.0%", "0.0%", "0.0%"]]
    assert [r[-1] for r in twin_table(twin, "Answers on the image")[1:]] == [
        "0.0%",
        "0.0%",
        "100.0%",
    ]


def test_without_scored_rows_there_are_no_chapters(tmp_path):
    assert galleries.sections(tmp_path, {}, {("ce", 0): []}) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"iou": None}, "TypeError"),
        ({"target": {"bocks": [1, 2]}}, "KeyError"),
        ({"parsed": [{"box": [1, 2, 3, 4, 5, 6]}]}, "TypeError"),
    ],
)
def test_rows_of_another_kind_are_rejected_in_one_sentence(tmp_path, change, words):
    row = one_box("7", [0, 0, 9, 9], [0, 0, 9, 9], 1.0) | change
    with pytest.raises(ValueError, match=f"scores.jsonl, line 1: .*{words}.*`mm-numeric"):
        compared(tmp_path, "grounding", {("ce", 0): [row]})


@pytest.mark.slow
def test_the_page_stays_small(tmp_path):
    noise = np.random.default_rng(0)
    names = ["ce", "emd", "rps"]
    turn = np.linspace(0, 2 * np.pi, 100, endpoint=False)
    ring = [
        {
            "polygon": (400 + radius * np.stack([np.cos(turn), np.sin(turn)], axis=1))
            .ravel()
            .tolist()
        }
        for radius in range(300, 325)
    ]
    runs = {(name, 0): [] for name in names}
    for i in range(13):
        image = Image.fromarray(noise.integers(0, 255, (60, 90, 3), dtype=np.uint8))
        image.resize((1500, 1000)).save(tmp_path / f"{i}.jpg")
        row = {"id": str(i), "image": str(tmp_path / f"{i}.jpg"), "text": "", "reason": None}
        row |= {"target": ring[:1], "parsed": ring, "matched": 1, "detected": 25, "truths": 1}
        for rows in runs.values():
            rows.append(row)
    page, _ = compared(tmp_path, "text_detection", runs)
    assert len(page.encode()) < 2_000_000
    assert page.count("data:image/jpeg") == 12
    assert f"the first {galleries.POINTS // 100} drawn" in page


@pytest.mark.slow
@pytest.mark.parametrize("kind", [scenes, pages])
def test_a_browser_shows_it_without_errors_or_sideways_scrolling(tmp_path, kind):
    names = ["ce", "an_objective_with_a_long_name", "x"]
    keys = {(name, 0): place / 2 for place, name in enumerate(names)}
    task = "grounding" if kind is scenes else "text_detection"
    page, _ = compared(tmp_path, task, kind(tmp_path, keys))
    for drawn in drawn_in_a_browser(page, tmp_path):
        assert drawn > 12 * len(names)
