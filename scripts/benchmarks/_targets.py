"""Performance targets of the losses, on a CPU at the size of Qwen2's vocabulary."""

from collections.abc import Sequence

import torch
from _bench import ALONE, CE, FULL, HIDDEN_FROZEN, HIDDEN_TRAINED, PADDED, Setting
from _measure import Result

from mm_numeric.losses.presets import PRESETS

MOST_TIMES_CE = 0.8
LEAST_TIMES_FASTER = 3.0
MOST_OF_FULL_MEMORY = 0.2


def at_target_size(setting: Setting) -> bool:
    """Return True if the targets apply to this size."""
    size = (setting.vocabulary, setting.rows, setting.digits, setting.dtype)
    return setting.device.type == "cpu" and size == (151936, 1024, 0.3, torch.float32)


def targets(results: Sequence[Result]) -> list[dict[str, object]]:
    """Compare results with the targets; return what, bound, limit, measured and met of each."""
    found = []
    eager = [result for result in results if not result.compiled]
    for result in eager:
        name = result.name
        if result.block.startswith((FULL, PADDED)) and name in PRESETS and result.ratio:
            where = result.block.removeprefix(PADDED + ", ").removeprefix("CE, ")
            what = f"{name}, {where}, time x {CE}"
            found.append(_target(what, "<=", MOST_TIMES_CE, result.ratio))
        elif result.block == ALONE and name == "ntl_was alone, reweighed" and result.ratio:
            what = f"{name}, times as fast as ntloss"
            found.append(_target(what, ">=", LEAST_TIMES_FASTER, 1 / result.ratio))
        elif result.block in (HIDDEN_FROZEN, HIDDEN_TRAINED) and name.startswith("from_hidden"):
            what = f"{name}, {result.block.split(', ')[1]}, peak x {CE} on all logits"
            found.append(_target(what, "<=", MOST_OF_FULL_MEMORY, result.peak_ratio))
            if result.head_gradient_bytes:
                # The gradient is an output, not working memory; torch's CE allocates it after
                # freeing the logits, so it is not in that peak.
                rest = 1 - result.head_gradient_bytes / result.peak_bytes
                what += ", less the gradient of the head"
                measured = rest * result.peak_ratio
                found.append(_target(what, "<=", MOST_OF_FULL_MEMORY, measured))
    return found


def _target(what: str, bound: str, limit: float, measured: float) -> dict[str, object]:
    """Return the record of one target."""
    met = measured <= limit if bound == "<=" else measured >= limit
    return {"what": what, "bound": bound, "limit": limit, "measured": measured, "met": met}
