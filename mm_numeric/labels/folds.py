"""Train a model for each fold of some rows, so that every row has a model that has not seen it."""

from dataclasses import asdict, replace
from pathlib import Path

from mm_numeric.comparison.plan import planned_runs
from mm_numeric.comparison.run import compare
from mm_numeric.comparison.seeds import with_resolved_vary
from mm_numeric.config.data import DataSource
from mm_numeric.config.decoding import GREEDY
from mm_numeric.config.reader import config_from_dict
from mm_numeric.config.schema import Config


def folds_config(
    config: Config, source: DataSource, folds: int, folder: Path, decode: str
) -> Config:
    """Return a comparison with one objective, that of ``config``, whose seeds are the folds.

    Each run is trained on all rows of ``source`` but one fold, and answers this fold greedily and
    by the rule ``decode``. Raises ValueError for a baseline, which has no distribution over texts.
    """
    if config.model.baseline is not None:
        raise ValueError(
            f"{config.title}, model.baseline: a baseline predicts numbers without a distribution "
            "over texts, so that no label is improbable; remove it."
        )
    raw = config.to_dict()
    train, test = (
        asdict(replace(source, fold=fold)) for fold in (f"not 0 of {folds}", f"0 of {folds}")
    )
    raw["data"] |= {"train": train, "test": test}
    raw["predict"]["decode"], raw["evaluate"] = GREEDY, None
    raw["compare"] = {
        "output_dir": str(folder),
        "seeds": list(range(folds)),
        "objectives": [raw["objective"]],
        "control": None,
        "decode": list(dict.fromkeys([GREEDY, decode])),
        "jobs": config.compare.jobs if config.compare else 1,
    }
    return config_from_dict(raw, where=config.title, title=config.title)


def train_folds(config: Config) -> list[Path]:
    """Train and answer the folds of ``folds_config``; return their run folders.

    Finished runs are not repeated, and an interrupted run resumes from its last checkpoint.
    """
    compare(config)
    compared = config.comparison
    resolved = with_resolved_vary(config, Path(compared.output_dir))
    return [run.config.output_dir for run in planned_runs(resolved, compared.seeds)]
