"""A bar chart shows the values that its row asks for."""

import json

import numpy as np
import pytest
from PIL import Image

from mm_numeric.synthetic.bar_charts import Charts


def test_a_bar_is_as_high_as_its_value(tmp_path):
    charts = Charts(rows=20, seed=5, image_noise=0, width_px=200, height_px=150)
    file = charts.write(tmp_path)
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert 1 <= sum("tolerance" in row for row in rows) <= 10
    for row in rows:
        pixels = np.asarray(Image.open(tmp_path / row["image"])).astype(int)
        coloured = pixels.max(axis=2) - pixels.min(axis=2) > 60
        edges = np.flatnonzero(np.diff(np.pad(coloured.any(axis=0).astype(int), 1)))
        tops = [coloured[:, a:b].any(axis=1).argmax() for a, b in edges.reshape(-1, 2)]
        heights = [(131 - top) / 121 * 100 for top in tops]  # axis from row 132 up to row 10
        if "tolerance" in row:
            assert row["answer"] == 2011 + int(np.argmin(tops))
        else:
            bar = int(row["question"][-5:-1]) - 2011
            assert heights[bar] == pytest.approx(row["answer"], abs=1.5)


@pytest.mark.parametrize("change", [{"least": 1}, {"most": 9}, {"highest": 10}, {"width_px": 40}])
def test_a_chart_has_limits(change):
    with pytest.raises(ValueError, match=r"least <= most|width_px and height_px"):
        Charts(**change)
