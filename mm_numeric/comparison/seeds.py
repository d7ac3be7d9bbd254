"""Derive the config of each seed of a comparison; ``compare.vary`` lists what changes.

If rows, label noise or folds vary, seed 0 uses those of the config, and each other seed derives its
own from them.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mm_numeric.config.data import DataSource, listed
from mm_numeric.config.reader import with_trainer
from mm_numeric.config.schema import TINY, Config
from mm_numeric.runs.folder import CONFIG
from mm_numeric.settings import read_yaml

_STRIDE = 1000
"""Seed S generates rows with the seed of their source plus S times this number."""

_DEFAULT = ("weights", "order", "noise", "rows")


def with_resolved_vary(config: Config, folder: Path) -> Config:
    """Return the config of a comparison with ``compare.vary`` set.

    If the setting is null, it becomes what the runs in ``folder`` vary, or the default in a new
    folder. Raises ValueError if the runs in the folder vary something else.
    """
    stored: Any = None
    if (folder / CONFIG).is_file() and any(folder.glob(f"seed*/*/{CONFIG}")):
        stored = (read_yaml(folder / CONFIG).get("compare") or {}).get("vary")
    vary = tuple(config.comparison.vary or stored or _default(config))
    if stored and set(vary) != set(stored):
        raise ValueError(
            f"{folder}: its seeds vary {', '.join(stored)}, and compare.vary is {list(vary)}; "
            "remove compare.vary to continue this comparison, or choose another compare.output_dir."
        )
    return replace(config, compare=replace(config.comparison, vary=vary))


def _default(config: Config) -> tuple[str, ...]:
    return (*_DEFAULT, "folds") if config.data.test.fold else _DEFAULT


def draws_rows(vary: Sequence[str] | None) -> bool:
    """Return True if each seed generates its own training rows under ``compare.vary``."""
    return "rows" in (vary or _DEFAULT)


def run_of_seed(config: Config, seed: int, vary: Sequence[str] | None, output_dir: Path) -> Config:
    """Return the config of a run in ``output_dir``, with everything in ``vary`` drawn by ``seed``.

    ``vary`` is ``compare.vary``; None is the default for a new comparison.
    """
    vary = vary or _default(config)
    step, data, evaluated = seed if "folds" in vary else 0, config.data, config.evaluate
    train = tuple(
        _drawn_by(source, seed, vary, config).with_next_fold(step) for source in listed(data.train)
    )
    one = isinstance(data.train, DataSource)
    data = replace(data, train=train[0] if one else train, test=data.test.with_next_fold(step))
    if evaluated is not None and evaluated.data is not None:
        evaluated = replace(evaluated, data=evaluated.data.with_next_fold(step))
    config = replace(config, data=data, evaluate=evaluated)
    fixed = config.trainer.get("seed", 42)  # the default of TrainingArguments
    weights = seed if "weights" in vary else fixed
    order = seed if "order" in vary else config.trainer.get("data_seed", fixed)
    # Without data_seed, seed determines the order, too.
    split = order != weights or "data_seed" in config.trainer
    own = {"seed": weights, **({"data_seed": order} if split else {})}
    return with_trainer(config, **own, output_dir=str(output_dir))


def with_rows_of(source: DataSource, seed: int) -> DataSource:
    """Return a training source with the synthetic rows of a seed; rows of files do not change."""
    made = source.synthetic
    if made is None:
        return source
    return replace(source, synthetic=replace(made, seed=made.seed + _STRIDE * seed))


def generate_same_rows(one: DataSource, other: DataSource) -> bool:
    """Return True if two sources have rows of the same generator with the same seed."""
    if one.synthetic is None or other.synthetic is None:
        return False
    return (one.synthetic.name, one.synthetic.seed) == (other.synthetic.name, other.synthetic.seed)


def _drawn_by(source: DataSource, seed: int, vary: Sequence[str], config: Config) -> DataSource:
    """Return a training source with the synthetic rows and the label noise of a seed."""
    if source.synthetic is not None and source.answers is None and "noise" in vary:
        source = replace(source, synthetic=source.synthetic.with_noise_of(seed))
    drawn = with_rows_of(source, seed) if "rows" in vary else source
    if drawn.synthetic is None or drawn == source:
        return drawn
    if source.answers is not None:
        raise ValueError(
            f"{config.title}, compare.vary: {source.answers} has answers to the rows of one seed; "
            "remove rows from compare.vary."
        )
    others = [config.data.test, config.evaluate.data if config.evaluate else None]
    if any(generate_same_rows(drawn, other) for other in others if other):
        raise ValueError(
            f"{config.title}, compare.vary: the training rows of seed {seed} are generated with "
            f"the seed {drawn.synthetic.seed}, as the test rows; change data.test.synthetic.seed, "
            "or leave out this seed."
        )
    return drawn


def describe_seeds(config: Config, *, has_noise: bool) -> str:
    """Describe in a sentence what differs between the seeds of a comparison, and what does not.

    ``has_noise`` is True if any row of the comparison trains on labels with noise.
    """
    vary = set(config.comparison.vary or _default(config))
    made = [source.synthetic is not None for source in listed(config.data.train)]
    model, named = config.model, {"weights": "random initialisation", "order": "data order"}
    if model.name != TINY and config.lora is None and model.baseline is None:
        named["weights"] = "randomness of training, such as dropout"
    if has_noise:
        named["noise"] = "label noise"
    named["rows"] = "training rows" if all(made) else "synthetic training rows"
    if not any(made):
        del named["rows"]
    drawn = [name for key, name in named.items() if key in vary]
    same = [name for key, name in named.items() if key not in vary]
    found = [f"each seed draws its own {_joined(drawn)}"] if drawn else []
    if "folds" in vary and config.data.test.fold:
        found.append("each seed tests on another fold of the rows, and trains on the other folds")
        found += [f"the same for all seeds: {_joined(same)}"] if same else []
    else:
        same += [*([] if all(made) else ["training rows from files"]), "test rows"]
        found.append(f"the {_joined(same)} are the same for all seeds")
    return "; ".join(found)


def _joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
