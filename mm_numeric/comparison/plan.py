"""The runs of a comparison, their order, and which run waits for which. Does not import torch."""

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
    """Decoding rules of the answers, of which ``greedy`` is the first."""

    select_on: DataSource | None
    """Rows to answer; None: the test rows."""

    @property
    def name(self) -> str:
        """Return the folder of the run in that of the comparison, such as ``seed0/ce``."""
        return "/".join(self.config.output_dir.parts[-2:])

    @property
    def answers(self) -> Path:
        """Return the folder of the answers."""
        folder = self.config.output_dir
        return folder if self.select_on is None else folder / SELECTION

    def is_finished(self) -> bool:
        """Return True if the answers under each rule have been scored, or the trial has failed."""
        if self.select_on is not None and failure(self.answers) is not None:
            return True
        results = [self.answers / decoded_name(RESULTS, rule) for rule in self.rules]
        is_current = self.select_on is None or selected_on(self.answers, self.select_on)
        return is_current and all(path.is_file() for path in results)


def open_runs(config: Config, seeds: Sequence[int]) -> list[Run]:
    """Return the unfinished runs of some seeds, in the order of execution.

    If settings are tuned, these are all trials, which answer the rows of ``compare.select_on``. If
    the trials of all seeds are finished, they are the chosen ones, which answer the test rows.
    """
    runs = first_runs(config, seeds)
    left = [run for run in runs if not run.is_finished()]
    if left or config.comparison.select_on is None:
        return left
    chosen = {row.folder for row in chosen_rows(config)}
    runs = [
        run._replace(rules=decoding_rules(config, run.config), select_on=None)
        for run in runs
        if run.config.output_dir.name in chosen
    ]
    return [run for run in runs if not run.is_finished()]


def first_runs(config: Config, seeds: Sequence[int]) -> list[Run]:
    """Return the runs of some seeds in the order of execution, before trials are chosen."""
    select_on = config.comparison.select_on
    runs = []
    for own in (own for seed in seeds for own in seed_runs(config, seed)):
        is_trial = select_on is not None and not own.output_dir.name.startswith(WARM_START)
        rules = (GREEDY,) if is_trial else decoding_rules(config, own)
        runs.append(Run(own, rules, select_on if is_trial else None))
    return _in_order(runs)


def seed_runs(config: Config, seed: int) -> list[Config]:
    """Return the configs of all training runs with one seed, in the order of execution.

    Each warm start (a model trained with cross-entropy) comes before the runs that continue from
    its weights. ``model.name`` of these runs is the folder with the weights.
    """
    folder, vary = Path(config.comparison.output_dir) / f"seed{seed}", config.comparison.vary
    warm_objective = read_objective("ce", "compare.warm_start")
    runs: dict[str, Config] = {}
    for row in compared_rows(config):
        start = folder / row.warm_start
        if row.warm_start not in runs:
            warm = replace(row.config, objective=warm_objective, distil=None, grpo=None)
            warm = replace(warm, trainer=row.warm_trainer)
            runs[row.warm_start] = run_of_seed(warm, seed, vary, start)
        model = replace(row.config.model, name=str(start / "model"), revision="main")
        for trial in row.trials:
            own = replace(trial.config, model=model)
            runs[trial.name] = run_of_seed(own, seed, vary, folder / trial.name)
    return list(runs.values())


def waits_for(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return for the name of each run the names of those of ``runs`` that it waits for.

    A run waits for the warm start whose weights it continues from. With ``distil``, it also waits
    for the run of another row that is its teacher, if there is one.
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
    """Return the settings of a training without those that do not change its weights."""
    settings = config.to_dict()
    changed = {
        "trainer": settings["trainer"] | {"output_dir": None},
        "objective": settings["objective"] | {"name": None},
    }
    return settings | changed | {"predict": None, "compare": None}


def _in_order(runs: Sequence[Run]) -> list[Run]:
    """Return the runs in the order of the argument, except that each comes after those it needs."""
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
    """Return the folder of the answers of an objective's runs of all seeds together."""
    return folder / "ensembles" / row.folder / "_".join(map(str, config.comparison.seeds))


def check_seeds(config: Config, seeds: Sequence[int] | None) -> None:
    """Raise ValueError if one of ``seeds`` is not a seed of the comparison."""
    for seed in seeds or ():
        if seed not in config.comparison.seeds:
            raise ValueError(
                f"compare.seeds: {seed} is not one of {list(config.comparison.seeds)}."
            )


def check_run(config: Config) -> None:
    """Raise ValueError if the folder of a run contains a run with other settings.

    Those of ``predict`` would not change the answers of a finished run. Only in a warm start they
    may differ, because it has those of the first row that shares it.
    """
    is_shared = config.output_dir.name.startswith(WARM_START)
    ignored = {"compare", "plugins", *(["predict"] if is_shared else [])}
    contains_run(config.output_dir, config, ignore=ignored, key="compare.output_dir")


def overview(config: Config, seeds: Sequence[int]) -> str:
    """Return a sentence with the number of runs of a comparison, and what they are."""
    rows, runs = compared_rows(config), first_runs(config, seeds)
    starts = len({row.warm_start for row in rows})
    names = [row.name for row in rows]
    if config.comparison.control:
        names[1] += " as a control (compare.control=null leaves it out)"
    trials = sum(len(row.trials) for row in rows)
    each = f"{trials} trials of " if trials > len(rows) else ""
    return (
        f"{len(runs)} runs: for each of {len(seeds)} seeds {starts} warm start"
        f"{'s' * (starts > 1)} and {each}{', '.join(names)}; "
        f"{sum(run.is_finished() for run in runs)} are finished."
    )


def plan_text(config: Config, seeds: Sequence[int] | None = None) -> str:
    """Format the runs of all or some seeds, what each waits for, and the resources it asks for."""
    check_seeds(config, seeds)
    config = with_resolved_vary(config, Path(config.comparison.output_dir))
    runs = first_runs(config, seeds or config.comparison.seeds)
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
    if config.comparison.tune:
        rows = ", ".join(row.name for row in compared_rows(config))
        lines += [f"then, for each seed: the best trial of {rows} answers the test rows"]
    asked = config.comparison.resources
    unset = "compare.resources is not set (--engine ray and --engine slurm use it)"
    lines += [f"each run asks for {asked}" if asked else unset, *problems[:1]]
    return "\n".join(line.rstrip() for line in lines)
