"""Generate clips (folders of frames) and the time span in which a moving square is visible."""

import random
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw

from mm_numeric.io.log import progress
from mm_numeric.synthetic.drawing import random_colour, with_noise
from mm_numeric.synthetic.generator import Generator, write_rows
from mm_numeric.synthetic.scenes import COLOURS


@dataclass(frozen=True, kw_only=True)
class Clips(Generator):
    """Clips of moving squares: rows of the task ``temporal_spans``."""

    name: str = "clips"

    frames: int = 8
    """Number of frames."""

    size_px: int = 56
    """Width and height of a frame."""

    image_noise: float = 0.02
    """Standard deviation of Gaussian pixel noise, as a fraction of 255."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frames < 2 or self.size_px < 28 or not 0 <= self.image_noise <= 1:
            raise ValueError(
                "frames is at least 2, size_px at least 28 and image_noise 0 to 1, not "
                f"{self.frames}, {self.size_px} and {self.image_noise}"
            )

    def write(self, folder: Path) -> Path:
        """Generate clips in an empty folder; return the path of the .jsonl file with their rows.

        A square of one colour moves through some of the frames, and a square of another colour
        through others. The row asks for the span in which the first square is visible: from the
        time of the first frame with this square to the time of the frame after the last one.
        """
        rows, half = [], 0.16 * self.size_px
        for i in progress(range(self.rows), desc="drawing clips", unit="clip"):
            rng = random.Random(f"{self.seed}:{i}")
            asked, other = rng.sample(list(COLOURS), 2)
            shown = {
                colour: sorted(rng.sample(range(self.frames + 1), 2)) for colour in (asked, other)
            }
            names = []
            (folder / f"images/{i:06d}").mkdir(parents=True)
            paths = {colour: _path(rng, self) for colour in shown}
            background = random_colour(rng, 10, 70)
            for frame in range(self.frames):
                image = Image.new("RGB", (self.size_px, self.size_px), background)
                for colour, (first, after) in shown.items():
                    if first <= frame < after:
                        x, y = paths[colour][frame]
                        square = x - half, y - half, x + half, y + half
                        ImageDraw.Draw(image).rectangle(square, fill=COLOURS[colour])
                names.append(f"images/{i:06d}/{frame:02d}.png")
                with_noise(image, self.image_noise, rng).save(folder / names[-1])
            span = [float(frame) for frame in shown[asked]]
            rows.append(
                {
                    "id": f"{self.seed}-{i:06d}",
                    "query": f"the {asked} square is visible",
                    "frames": names,
                    "seconds": [float(frame) for frame in range(self.frames)],
                    "spans": [span],
                }
            )
        return write_rows(folder, rows)


def _path(rng: random.Random, settings: Clips) -> list[tuple[float, float]]:
    margin = 0.2 * settings.size_px
    (x1, y1), (x2, y2) = (
        (
            rng.uniform(margin, settings.size_px - margin),
            rng.uniform(margin, settings.size_px - margin),
        )
        for _ in range(2)
    )
    parts = [frame / (settings.frames - 1) for frame in range(settings.frames)]
    return [(x1 + part * (x2 - x1), y1 + part * (y2 - y1)) for part in parts]
