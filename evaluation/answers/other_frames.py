"""Find a published frame in which coordinates are read much better than in the declared one."""

import math
from collections.abc import Sequence

from mm_numeric.evaluation.answers.source import AnswerRows
from mm_numeric.evaluation.metrics.base import Scorer
from mm_numeric.evaluation.results import in_unit
from mm_numeric.geometry.frame_presets import published_frames
from mm_numeric.geometry.frames import Frame

SAMPLE_ROWS = 100
"""Number of answers that are read in each frame: the first ones of a file."""

_FEWEST = 10  # answers, and below it none is compared
_MARGIN = 0.3  # difference of a metric in % that is no accident


def other_frame(read: AnswerRows, scorer: Scorer) -> str:
    """Return a sentence if another frame reads texts with coordinates much better; else "".

    The texts are those of the first rows. The frame is only named, and never used: a metric that
    could choose its frame would be too high.
    """
    first = zip(read.rows, read.frames, read.targets, strict=False)
    rows = [(row["text"], frame, target) for row, frame, target in first if frame is not None]
    main = scorer.metrics[0]
    if len(rows) < _FEWEST or not (main.is_share and main.higher_is_better):
        return ""

    def value(own: Sequence[Frame]) -> float:
        answers = [
            read.task.parse(text, frame) for (text, *_), frame in zip(rows, own, strict=True)
        ]
        found = float(main.value(scorer.judge(answers, [target for *_, target in rows])))
        return -1.0 if math.isnan(found) else found

    declared = [frame for _, frame, _ in rows]
    now, best, option = value(declared), -1.0, ""
    for name, rule in published_frames().items() if now < 1 - _MARGIN else ():
        try:
            found = value([rule.frame(frame.width_px, frame.height_px) for frame in declared])
        except ValueError:  # this family accepts no image of such a size
            continue
        if found > best:
            best, option = found, name
    if best < now + _MARGIN:
        return ""
    return (
        f"the answers seem to be in another frame: {main.label} of the first {len(rows)} is "
        f"{in_unit(max(now, 0.0), main.unit)} in the declared one, and {in_unit(best, main.unit)} "
        f"with {option}; check --family, --frame or the field frame of the answers."
    )
