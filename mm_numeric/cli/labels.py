"""``mm-numeric labels``: how good the labels of a data set are, and which ones to look at."""

import argparse

from mm_numeric.io.log import show

_OF_RUN = ("folds", "decode", "keep", "worst", "images", "out", "trust_remote_code")
_OF_AGAIN = ("task", "option")


def labels(arguments: argparse.Namespace) -> None:
    """Rank the labels of rows, or print their errors and advice from a second labelling."""
    if (arguments.run is None) == (arguments.again is None):
        raise ValueError(
            "labels: name a run that was not trained on the rows of --data, to rank their labels, "
            "or a second labelling with --again; one of both."
        )
    form, others = ("--again FILE", _OF_AGAIN) if arguments.again is None else ("RUN", _OF_RUN)
    if used := [name for name in others if getattr(arguments, name) not in (None, False)]:
        option = used[0].replace("_", "-")
        raise ValueError(f"--{option} is an option of `mm-numeric labels {form}`; remove it.")
    if arguments.again is None:
        from mm_numeric.cli.rank_labels import rank

        rank(arguments)
        return
    from mm_numeric.config.reader import with_overrides
    from mm_numeric.evaluation.answers.source import PreparedRows, read_task
    from mm_numeric.evaluation.score_text import in_unit, indented_table
    from mm_numeric.labels.again import compare_labels, read_pairs

    options = with_overrides({}, arguments.option or ())
    _, task = read_task(PreparedRows(path=arguments.data, options=options), arguments.task)
    pairs = read_pairs(task, arguments.data, arguments.again)
    lines, advice = compare_labels(pairs, log=arguments.log)
    table = [
        (name, in_unit(own.value, unit), f"{in_unit(own.low, unit)} to {in_unit(own.high, unit)}")
        for name, own, unit in lines
    ]
    show(f"{len(pairs)} rows; second labels count as correct; 95 % intervals")
    show(f"{indented_table(table)}\nadvice: {advice}")
