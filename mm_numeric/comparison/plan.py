"""The runs of a comparison, their order and their dependencies. Does not import torch."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from mm_numeric.comparison.rows import ComparisonRow, compared_rows, decoding_rules
from mm_numeric.comparison.seeds import run_of_seed, with_resolved_vary
from mm_numeric.comparison.selection import SELECTION, chosen_rows, failure, selected_on
from mm_numeric.config.data import DataSource
from mm_numeric.config.decoding import GREEDY
from mm_numeric.config.reader import read_objective
from mm_numeric.config.schema import Config
from mm_numeric.runs.folder import MODEL, RESULTS, WARM_START, contains_run, decoded_name


class Run(NamedTuple):
    """A run to execute: train it unless it is trained, answer rows, and score the answers."""

    config: Config
    rules: Sequence[str]
    """Decoding rules of the answers; ``greedy`` is the first."""

    select_on: DataSource | None
    """Rows to answer; None: the test rows."""

    @property
    def name(self) -> str:
        """Return the folder of the run inside the comparison folder, such as ``seed0/ce``."""
        return "/".join(self.config.output_dir.parts[-2:])

    @property
    def answers(self) -> Path:
        """Return the folder of the answers."""
        folder = self.config.output_dir
        return folder if self.select_on is None else folder / SELECTION

    def is_finished(self) -> bool:
        """Return True if the answers under each rule are scored, or the run is a failed trial."""
        if self.select_on is not None and failure(self.answers) is not None:
            return True
        results = [self.answers / decoded_name(RESULTS, rule) for rule in self.rules]
        is_current = self.select_on is None or selected_on(self.answers, self.select_on)
        return is_current and all(path.is_file() for path in results)


def all_seeds(config: Config) -> list[int]:
    """Return the seeds in the order of execution: those of ``compare.tune``, then the others."""
    compare = config.comparison
    return [*(compare.tune_seeds if compare.tune else ()), *compare.seeds]


def open_runs(config: Config, seeds: Sequence[int]) -> list[Run]:
    """Return the unfinished runs of some seeds, in the order of execution.

    Trials, which answer the rows of ``compare.select_on``, come first: while trials of ``seeds``
    are unfinished, no other run is returned. Raises ValueError if the other runs need the results
    of unfinished trials whose seeds are not in ``seeds``.
    """
    tuned = [seed for seed in seeds if seed not in config.comparison.seeds]
    if left := [run for run in planned_runs(config, tuned) if not run.is_finished()]:
        return left
    seeds = [seed for seed in seeds if seed in config.comparison.seeds]
    if seeds and not chosen_rows(config):
        raise ValueError(
            f"{config.title}, compare.tune: the trials of the seeds "
            f"{list(config.comparison.tune_seeds)} choose the settings of the other seeds, and "
            f"are not finished in {config.comparison.output_dir}; run them first, with --seeds."
        )
    return [run for run in planned_runs(config, seeds) if not run.is_finished()]


def planned_runs(config: Config, seeds: Sequence[int]) -> list[Run]:
    """Return all runs of ``seeds`` in order of execution; the runs of ``tune_seeds`` are trials.

    Each warm start (a model trained with cross-entropy) comes before the runs that continue from
    its weights. ``model.name`` of these runs is the folder with the weights. Before the settings of
    ``compare.tune`` are chosen, the runs that are not trials use the values in the config.
    """
    rows = compared_rows(config)
    chosen = chosen_rows(config) or rows
    own = ((seed, chosen if seed in config.comparison.seeds else rows) for seed in seeds)
    return _in_order([run for seed, entries in own for run in _seed_runs(config, seed, entries)])


def _seed_runs(config: Config, seed: int, rows: Sequence[ComparisonRow]) -> list[Run]:
    compare = config.comparison
    folder, vary = Path(compare.output_dir) / f"seed{seed}", compare.vary
    is_tuned = seed not in compare.seeds
    warm_objective = read_objective("ce", "compare.warm_start")
    runs: dict[str, Run] = {}

    def add(name: str, own: Config, *, is_trial: bool = False) -> None:
        rules = (GREEDY,) if is_trial else decoding_rules(config, own)
        on = compare.select_on if is_trial else None
        runs[name] = Run(run_of_seed(own, seed, vary, folder / name), rules, on)

    for row in rows:
        model = row.config.model
        if row.warm_start is not None and row.warm_trainer is not None:
            if row.warm_start not in runs:
                warm = replace(row.config, objective=warm_objective, distil=None)
                add(row.warm_start, replace(warm, trainer=row.warm_trainer))
            weights = str(folder / row.warm_start / MODEL)
            model = replace(model, name=weights, revision="main")
        if is_tuned:
            for trial in row.trials:
                add(trial.name, replace(trial.config, model=model), is_trial=True)
        else:
            add(row.name, replace(row.config, model=model))
    return list(runs.values())


def waits_for(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Map the name of each run to the names of the other ``runs`` that it waits for.

    A run waits for the warm start whose weights it continues from. With ``distil``, it also waits
    for the run of another row that can be its teacher, if there is one.
    """
    weights = {str(run.config.output_dir / MODEL): run.name for run in runs}
    found = {}
    for run in runs:
        start, folder = run.config.model.name, run.config.output_dir.parent
        found[run.name] = [weights[start]] if start in weights else []
        if run.config.distil:
            teacher = training_settings(replace(run.config, distil=None))
            found[run.name] += [
                other.name
                for other in runs
                if other.config.output_dir.parent == folder
                and training_settings(other.config) == teacher
            ]
    return found


def training_settings(config: Config) -> dict[str, Any]:
    """Return the settings of a config, without those that do not change the trained weights."""
    settings = config.to_dict()
    changed = {
        "trainer": settings["trainer"] | {"output_dir": None},
        "objective": settings["objective"] | {"name": None},
    }
    return settings | changed | {"predict": None, "compare": None}


def _in_order(runs: Sequence[Run]) -> list[Run]:
    """Return the runs in their given order, but each run after the runs that it waits for."""
    by_name, waits = {run.name: run for run in runs}, waits_for(runs)
    ordered: dict[str, Run] = {}

    def add(name: str) -> None:
        for other in waits[name]:
            add(other)
        ordered.setdefault(name, by_name[name])

    for name in by_name:
        add(name)
    return list(ordered.values())


def ensemble_folder(row: ComparisonRow, config: Config, folder: Path) -> Path:
    """Return the folder with the answers of an objective's ensemble (its runs of all seeds)."""
    return folder / "ensembles" / row.name / "_".join(map(str, config.comparison.seeds))


def check_seeds(config: Config, seeds: Sequence[int] | None) -> None:
    """Raise ValueError if one of ``seeds`` is not a seed of the comparison."""
    for seed in seeds or ():
        if seed not in all_seeds(config):
            raise ValueError(f"compare.seeds: {seed} is not one of {all_seeds(config)}.")


def check_run(config: Config) -> None:
    """Raise ValueError if the folder of a run contains a run with other settings.

    Settings of ``predict`` must be the same, too, because a finished run is not answered again.
    They may differ for a warm start, which has the settings of the first row that uses it.
    """
    is_shared = config.output_dir.name.startswith(WARM_START)
    ignored = {"compare", "plugins", *(["predict"] if is_shared else [])}
    contains_run(config.output_dir, config, ignore=ignored, key="compare.output_dir")


def overview(config: Config, seeds: Sequence[int]) -> str:
    """Describe the runs of a comparison in a sentence: how many there are, and which."""
    rows, runs = compared_rows(config), planned_runs(config, seeds)
    starts = len({row.warm_start for row in rows} - {None})
    names = [row.name for row in rows]
    if config.comparison.control:
        names[1] += " as a control (compare.control=null leaves it out)"
    warm = f"{starts} warm start{'s' * (starts > 1)} and " if starts else ""
    tuned = [seed for seed in seeds if seed not in config.comparison.seeds]
    trials = sum(len(row.trials) for row in rows)
    first = f"for each of {len(tuned)} seeds {warm}{trials} trials; " if tuned else ""
    return (
        f"{len(runs)} runs: {first}for each of {len(seeds) - len(tuned)} seeds {warm}"
        f"{', '.join(names)}; {sum(run.is_finished() for run in runs)} are finished."
    )


def plan_text(config: Config, seeds: Sequence[int] | None = None) -> str:
    """Format a table of the runs of all or some seeds, and the resources of each run."""
    check_seeds(config, seeds)
    config = with_resolved_vary(config, Path(config.comparison.output_dir))
    runs = planned_runs(config, seeds or all_seeds(config))
    waits = waits_for(runs)
    cells, problems = [("run", "waits for", "state")], list[str]()
    for run in runs:
        state = "finished" if run.is_finished() else "open"
        try:
            check_run(run.config)
        except ValueError as error:
            state = "another run"
            problems.append(str(error))
        cells.append((run.name, ", ".join(waits[run.name]) or "-", state))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(own, widths, strict=True)) for own in cells]
    if config.comparison.tune and not chosen_rows(config):
        lines += ["when all trials are finished, the settings of the other runs are the best ones"]
    asked = config.comparison.resources
    unset = "compare.resources is not set (--engine ray uses it)"
    lines += [f"each run asks for {asked}" if asked else unset, *problems[:1]]
    return "\n".join(line.rstrip() for line in lines)
