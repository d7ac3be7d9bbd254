"""``mm-numeric labels RUN``: rank labels by how badly they fit a model that has not seen them."""

import argparse
from pathlib import Path

from mm_numeric.config.data import DataSource, Sources
from mm_numeric.config.reader import read_config
from mm_numeric.io.escaping import plain
from mm_numeric.io.files import write_text
from mm_numeric.io.log import show


def rank(arguments: argparse.Namespace) -> None:
    """Rank the labels of ``--data``; write the page, the CSV and the rows to keep."""
    data, keep, worst = arguments.data, arguments.keep, arguments.worst
    run, out = Path(arguments.run), arguments.out
    if worst is not None and (keep is None or not 0 < worst < 100):
        raise ValueError(
            f"--worst {worst:g}: it is the share of rows that --keep FILE leaves out, in percent, "
            "above 0 and below 100."
        )
    if keep is not None and (data.suffix != ".jsonl" or keep.resolve() == data.resolve()):
        raise ValueError(
            f"--keep copies lines of a .jsonl file to another file, not {data} to {keep}."
        )
    if arguments.folds is None and (arguments.overrides or run.is_file()):
        raise ValueError(
            f"{' '.join([str(run), *arguments.overrides])}: a config and its settings are for "
            "--folds 5, which trains with them; to use a finished run, name its folder alone."
        )
    from mm_numeric.labels.page import keep_rows, label_words, labels_csv, labels_page
    from mm_numeric.labels.rank import judged_labels, suspicion, train_folds

    source = DataSource(path=str(data), images=arguments.images)
    runs: dict[Path, Sources | None] = {run: source}
    trusted = arguments.trust_remote_code
    if arguments.folds is not None:
        config = read_config(arguments.run, arguments.overrides)
        out = out or config.output_dir.with_name(f"{config.output_dir.name}.labels")
        folds = train_folds(config, source, arguments.folds, out / "folds")
        runs, trusted = dict.fromkeys(folds), True  # the config is the user's own
    out = out or run / "labels"
    options = {"decode": arguments.decode, "log": arguments.log, "trust_remote_code": trusted}
    labels = [own for run, rows in runs.items() for own in judged_labels(run, rows, out, **options)]
    labels = [labels[at] for at in (-suspicion(labels)).argsort(kind="stable")]
    write_text(out / "labels.csv", labels_csv(labels))
    write_text(out / "labels.html", labels_page(labels, data.name))
    for place, own in enumerate(labels[:10], start=1):
        show(f"{place:2d}  {plain(own.example.id, 60)}: {label_words(own)}")
    show(f"{len(labels)} labels ranked: {out / 'labels.csv'}; page: {out / 'labels.html'}")
    if keep is not None:
        worst = 5 if worst is None else worst
        count = keep_rows(data, keep, labels, worst)
        show(f"{count} rows without the worst {worst:g} %: {keep}")
