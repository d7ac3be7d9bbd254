"""``mm-numeric labels RUN``: rank labels by how badly they fit a model that has not seen them."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mm_numeric.config.data import DataSource
from mm_numeric.io.escaping import plain
from mm_numeric.io.files import write_text
from mm_numeric.io.log import show

if TYPE_CHECKING:
    from mm_numeric.config.data import Sources

_LISTED = 10  # labels that are printed


def rank(arguments: argparse.Namespace) -> None:
    """Rank the labels of ``--data``; write the page, the CSV and the rows to keep."""
    worst = 5.0 if arguments.worst is None else arguments.worst
    if arguments.worst is not None and arguments.keep is None:
        raise ValueError("--worst is the share of rows that --keep leaves out; add --keep FILE.")
    if not 0 < worst < 100:
        raise ValueError(f"--worst is a percentage above 0 and below 100, not {worst:g}.")
    if arguments.keep is not None and arguments.data.suffix != ".jsonl":
        raise ValueError(f"--keep copies lines of a .jsonl file, not of {arguments.data}.")
    if arguments.keep is not None and arguments.keep.resolve() == arguments.data.resolve():
        raise ValueError(f"--keep {arguments.keep}: this is the file of --data; name another one.")
    runs, out, decode = _runs(arguments)
    from mm_numeric.labels.page import keep_rows, label_words, labels_csv, write_page
    from mm_numeric.labels.rank import judged_labels, ranked

    # The config of --folds is the user's own.
    options = {
        "decode": decode,
        "log": arguments.log,
        "trust_remote_code": arguments.trust_remote_code or bool(arguments.folds),
    }
    labels = ranked([
        own for run, source in runs.items() for own in judged_labels(run, source, out, **options)
    ])  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "labels.csv", labels_csv(labels))
    write_page(out / "labels.html", labels, arguments.data.name)
    for own in labels[:_LISTED]:
        show(f"{own.rank:2d}  {plain(own.example.id, 60)}: {label_words(own)}")
    show(f"{len(labels)} labels ranked: {out / 'labels.csv'}; page: {out / 'labels.html'}")
    if arguments.keep is not None:
        count = keep_rows(arguments.data, arguments.keep, labels, worst)
        show(f"{count} rows without the worst {worst:g} %: {arguments.keep}")


def _runs(arguments: argparse.Namespace) -> "tuple[dict[Path, Sources | None], Path, str | None]":
    """Return the runs with the rows that they judge, the output folder, and the decoding rule."""
    images = None if arguments.images is None else str(arguments.images)
    source = DataSource(path=str(arguments.data), images=images)
    if arguments.folds is None:
        if arguments.overrides:
            raise ValueError(
                f"{arguments.overrides[0]}: settings are for the config of --folds; a run is not "
                "trained again."
            )
        run = Path(arguments.run)
        if run.is_file():
            raise ValueError(
                f"{run} is a file: name the folder of a finished run, or add --folds 5 to train "
                "with this config."
            )
        return {run: source}, arguments.out or run / "labels", arguments.decode
    from mm_numeric.config.reader import read_config

    config = read_config(arguments.run, arguments.overrides)
    config.require_weights()
    out = arguments.out or config.output_dir.with_name(f"{config.output_dir.name}.labels")
    from mm_numeric.comparison.run import RunFailedError
    from mm_numeric.data.examples import examples_to_answer
    from mm_numeric.labels.folds import folds_config, train_folds
    from mm_numeric.labels.rank import default_rule, require_labels

    examples = examples_to_answer(config, source)
    require_labels(examples)
    decode = arguments.decode or default_rule(examples[0].answer)
    comparison = folds_config(config, source, arguments.folds, out / "folds", decode)
    try:
        return dict.fromkeys(train_folds(comparison)), out, decode
    except RunFailedError as error:
        raise ValueError(error.args[0]) from error
