"""The label noise of generators is what its settings say, and does not depend on the drawing."""

import json
import statistics
from dataclasses import replace

import pytest

from mm_numeric.synthetic.clock_faces import Clocks
from mm_numeric.synthetic.scenes import Objects, Phrases

IDS = list(range(8000))


def shifts(clocks, ids=IDS):
    """Return by how many minutes each label moved from twelve, by id."""
    times = {i: clocks.with_label_noise({"id": i, "time": "12:00"})["time"] for i in ids}
    minutes = {i: 60 * int(time.partition(":")[0]) + int(time[-2:]) for i, time in times.items()}
    return {i: (found + 360) % 720 - 360 for i, found in minutes.items()}


def test_label_noise_is_gaussian_and_goes_round_the_dial():
    found = list(shifts(Clocks(noise_minutes=5.0)).values())
    assert abs(statistics.fmean(found)) < 0.2  # four standard errors
    assert abs(statistics.pstdev(found) - (25 + 1 / 12) ** 0.5) < 0.16
    assert sum(shift < 0 for shift in found) > 3000
    assert abs(sum(abs(shift) <= 5 for shift in found) / 8000 - 0.7287) < 0.02


@pytest.mark.slow
def test_label_noise_depends_on_the_id_and_the_seed_alone():
    first = shifts(Clocks(noise_minutes=5.0))
    assert shifts(Clocks(noise_minutes=5.0, seed=9), IDS[5:6]) == {5: first[5]}
    other = shifts(Clocks(noise_minutes=5.0).with_noise_of(1))
    assert other == shifts(Clocks(noise_minutes=5.0, noise_seed=1))
    same = sum(first[key] == other[key] for key in first) / len(first)
    assert 0.03 < same < 0.09  # two independent draws agree in 5.6 % of rows


def test_exponential_noise_makes_labels_late():
    found = list(shifts(Clocks(noise_minutes=5.0, noise_distribution="exponential")).values())
    assert min(found) >= 0
    assert statistics.mean(found) == pytest.approx(5, abs=0.5)
    assert statistics.median(found) == pytest.approx(5 * 0.693, abs=0.6)


@pytest.mark.slow
def test_outliers_are_random_times_and_leave_the_other_labels_as_they_are():
    found = shifts(Clocks(outliers=0.1))
    moved = [shift for shift in found.values() if shift]
    assert len(moved) / len(found) == pytest.approx(0.1, abs=0.03)
    assert min(moved) < -120
    assert max(moved) > 120
    noisy, both = (shifts(Clocks(noise_minutes=5.0, outliers=p)) for p in (0.0, 0.1))
    changed = sum(noisy[key] != both[key] for key in noisy)
    assert changed / len(noisy) == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(
    ("clean", "settings"),
    [
        (Clocks(rows=6, seed=3, size_px=16), {"noise_minutes": 90.0}),
        (Phrases(rows=6, seed=3), {"noise_pixels": 4.0}),
        (Objects(rows=6, seed=3), {"noise_pixels": 4.0}),
    ],
)
def test_noise_changes_the_labels_and_not_the_images(clean, settings, tmp_path):
    noisy = replace(clean, **settings)
    assert (clean.has_noise, noisy.has_noise) == (False, True)
    first, second = (
        [*map(json.loads, made.write(tmp_path / name).read_text(encoding="utf-8").splitlines())]
        for name, made in (("clean", clean), ("noisy", noisy))
    )
    for one, other in zip(first, second, strict=True):
        assert one != other
        assert one["id"] == other["id"]
        images = [(tmp_path / name / one["image"]).read_bytes() for name in ("clean", "noisy")]
        assert images[0] == images[1]


def boxes(phrases, ids=IDS[:4000], box=(300, 200, 600, 500)):
    return {i: tuple(phrases.with_label_noise({"id": i, "box": list(box)})["box"]) for i in ids}


LARGE = {"width_px": 1000, "height_px": 800}


def test_each_edge_has_its_own_gaussian_noise():
    by_edge = list(zip(*boxes(Phrases(noise_pixels=5.0, **LARGE)).values(), strict=True))
    for values, edge in zip(by_edge, (300, 200, 600, 500), strict=True):
        assert abs(statistics.fmean(values) - edge) < 0.32  # four standard errors
        assert abs(statistics.pstdev(values) - 5) < 0.23
    assert abs(statistics.correlation(by_edge[0], by_edge[2])) < 0.07


@pytest.mark.slow
def test_the_noise_of_a_box_depends_on_the_id_and_the_seed_alone():
    phrases = Phrases(noise_pixels=5.0, **LARGE)
    first = boxes(phrases)
    assert boxes(phrases, [5]) == {5: first[5]}
    assert boxes(phrases.with_noise_of(0)) == first
    assert not set(boxes(phrases.with_noise_of(1)).values()) & set(first.values())


@pytest.mark.parametrize("x", [0, 500, 998])
def test_boxes_stay_boxes_inside_the_image(x):
    found = boxes(Phrases(noise_pixels=40.0, **LARGE), IDS[:300], (x, 0, x + 2, 800))
    for x1, y1, x2, y2 in found.values():
        assert 0 <= x1 < x2 <= 1000
        assert 0 <= y1 < y2 <= 800


def test_each_box_of_a_list_moves():
    row = {"id": "0", "instances": [{"box": [10, 10, 50, 50], "label": "circle"}] * 2}
    first, second = Objects(noise_pixels=3.0).with_label_noise(row)["instances"]
    assert (first["label"], second["label"]) == ("circle", "circle")
    assert len({tuple(first["box"]), tuple(second["box"]), (10, 10, 50, 50)}) == 3
    assert row["instances"][0]["box"] == [10, 10, 50, 50]


@pytest.mark.parametrize(
    ("generator", "settings", "message"),
    [
        *((Clocks, {"noise_minutes": n}, f"noise_minutes is 0 to 360, not {n}")
          for n in (-1.0, 361.0, float("inf"), float("nan"))),
        (Clocks, {"outliers": 1.5}, "outliers is 0 to 1, not 1.5"),
        (Clocks, {"noise_distribution": "late"}, "noise_distribution is one of gaussian, expon"),
        *((Phrases, {"noise_pixels": n}, f"noise_pixels is 0 or more, not {n}")
          for n in (-1.0, float("inf"), float("nan"))),
        (Objects, {"noise_pixels": 1.0, "shape": "polygon"}, "it requires shape: box"),
    ],
)  # fmt: skip
def test_invalid_noise_is_rejected(generator, settings, message):
    with pytest.raises(ValueError, match=message):
        generator(**settings)


def test_a_report_describes_the_noise():
    assert Clocks().describe() == "clean labels"
    noisy = Clocks(noise_minutes=5, outliers=0.1).describe()
    assert noisy == "labels with Gaussian noise of 5 minutes, 10 % of them random times"
    assert Phrases(noise_pixels=4).describe() == "boxes with Gaussian noise of 4 pixels"
