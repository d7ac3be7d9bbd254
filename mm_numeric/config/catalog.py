"""List the tasks, families, losses, risks, rewards and configs that ship, for ``mm-numeric ls``."""

from collections.abc import Mapping

from mm_numeric.config.reader import CONFIGS
from mm_numeric.config.trainer_settings import deepspeed_settings
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.losses.presets import PRESETS, SUMMARIES
from mm_numeric.registry import API, BASELINES, FAMILIES, IMPORTERS, REWARDS, RISKS, TASKS, TERMS


def shipped(*, everything: bool = False) -> str:
    """Return the text of ``mm-numeric ls``; ``everything`` adds variants and controls."""
    lines = [
        f"{title}: {', '.join(names)}"
        for title, names in (
            ("tasks", TASKS),
            ("families", [*FAMILIES, API]),
            ("baselines", BASELINES),
            ("coordinates", COORDINATES),
            ("loss terms", TERMS),
            ("risks", RISKS),
            ("rewards", REWARDS),
            ("formats", IMPORTERS),
        )
    ]
    lines.append("objectives:")
    others = {name: str(spec) for name, spec in PRESETS.items() if name not in SUMMARIES}
    lines += _aligned({**SUMMARIES, **(others if everything else {})})
    if not everything:
        lines.append(f"  and {len(others)} variants and controls: mm-numeric ls --all")
    lines.append("configs:")
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(CONFIGS.glob("*.yaml"))}
    abouts = {name: text.partition("\n#\n")[0].lstrip("# ") for name, text in texts.items()}
    lines += _aligned({name: about.replace("\n# ", " ") for name, about in abouts.items()})
    lines.append(f"trainer.deepspeed: {', '.join(deepspeed_settings())}")
    return "\n".join(lines)


def _aligned(texts: Mapping[str, str]) -> list[str]:
    """Return a line for each name, with its text in a column of its own."""
    width = max(map(len, texts))
    return [f"  {name:<{width}}  {text}" for name, text in texts.items()]
