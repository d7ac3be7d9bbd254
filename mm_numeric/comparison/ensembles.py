"""Ensembles of a comparison: the runs of all seeds of an objective answer together.

With ``compare.ensemble``, the distributions of the answers of these runs are averaged, and each
decoding rule other than ``greedy`` chooses from the mean. The answers of an objective are in
``ensembles/ROW/SEEDS/`` in the folder of the comparison, such as ``ensembles/ce/0_1_2/``.
"""

from pathlib import Path

from mm_numeric.comparison.rows import ComparisonRow, decoding_rules
from mm_numeric.comparison.selection import chosen_rows
from mm_numeric.config.schema import Config
from mm_numeric.io.log import logger
from mm_numeric.runs.folder import PREDICTIONS, decoded_name


def answer_ensembles(config: Config, folder: Path) -> None:
    """Answer the test rows with the ensemble of each objective; nothing without ``ensemble``."""
    if not config.comparison.ensemble:
        return
    from mm_numeric.inference.generate import predict

    for row in chosen_rows(config):
        rules = tuple(decoding_rules(config, row.config)[1:])
        if not rules:
            continue
        own = ensemble_folder(row, config, folder)
        runs = [folder / f"seed{seed}" / row.folder for seed in config.comparison.seeds]
        logger.info("answering with the ensemble of %s", row.name)
        out = own / decoded_name(PREDICTIONS, rules[0])
        predict(runs, None, out, trust_remote_code=True, rules=rules)


def ensemble_folder(row: ComparisonRow, config: Config, folder: Path) -> Path:
    """Return the folder of the answers of an objective's ensemble."""
    return folder / "ensembles" / row.folder / "_".join(map(str, config.comparison.seeds))
