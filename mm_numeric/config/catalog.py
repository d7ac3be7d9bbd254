"""List the tasks, families, losses, risks, rewards and configs that ship, for ``mm-numeric ls``."""

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
    lines += [f"  {name:<17} {summary}" for name, summary in SUMMARIES.items()]
    others = {name: spec for name, spec in PRESETS.items() if name not in SUMMARIES}
    if everything:
        lines += [f"  {name:<17} {spec}" for name, spec in others.items()]
    else:
        lines.append(f"  and {len(others)} variants and controls: mm-numeric ls --all")
    lines.append("configs:")
    for path in sorted(CONFIGS.glob("*.yaml")):
        about = path.read_text(encoding="utf-8").partition("\n#\n")[0].replace("\n# ", " ")
        lines.append(f"  {path.stem:<17} {about.lstrip('# ')}")
    lines.append(f"trainer.deepspeed: {', '.join(deepspeed_settings())}")
    return "\n".join(lines)
