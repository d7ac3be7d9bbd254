"""Compare objectives: train each from the same weights on the same batches, for several seeds.

Each seed has its own initialisation, data order, label noise and rendered rows (``compare.vary``).
For each seed, a model is first trained with cross-entropy (the warm start). Then each objective is
trained from those weights with the same data order, and evaluated on the same test samples. Each
objective is a row of the result table. An objective may also change other settings, such as the
model. It then has its own warm start, with these settings and the same number of steps; settings of
the trainer, such as the learning rate, do not change the warm start. A model with its own loss,
such as a regression head with squared error, also uses this loss in its warm start. Output:

    summary.json, report.html, report.md
    seedS/warm_start*/, seedS/ROW/    run folders with predictions, scores and results
    seedS/ROW_SETTINGS/               instead of seedS/ROW/ if ``compare.tune`` has settings

Finished runs are not repeated. An interrupted run resumes from its last checkpoint. If a decoding
rule is added to ``compare.decode``, finished runs answer the test samples again, without training.

With ``compare.tune``, each row is trained with each combination of the settings (a trial). Trials
answer the rows of ``compare.select_on``. When those of all seeds have done so, the best trial of
each row answers the test samples. A trial fails if its loss diverges, or if it has no parseable
answers of its own to be trained on; it is not repeated, and is never the best one.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from mm_numeric.comparison.rows import compared_rows
from mm_numeric.comparison.seeds import run_of_seed, with_resolved_vary
from mm_numeric.comparison.selection import (
    SELECTION,
    chosen_rows,
    failure,
    selected_on,
    write_failure,
    write_source,
)
from mm_numeric.comparison.summary import write_summary
from mm_numeric.config.data import DataSource
from mm_numeric.config.decoding import GREEDY
from mm_numeric.config.reader import read_objective
from mm_numeric.config.schema import Config
from mm_numeric.evaluation.results_table import in_unit
from mm_numeric.evaluation.score import score
from mm_numeric.files import read_rows
from mm_numeric.log import progress
from mm_numeric.losses.term import make_term
from mm_numeric.run_folder import (
    CONFIG,
    DIGITS,
    FINISHED,
    PREDICTIONS,
    RESULTS,
    WARM_START,
    claim,
    decoded_name,
    is_resumable,
    locked,
    write_config,
)

_MAY_DIFFER = {"compare", "objective"}  # sections that do not change existing runs


class SeedFailedError(Exception):
    """Raised if the process that runs one seed fails. ``args`` is (error message, exit code)."""


def compare(config: Config, *, seeds: Sequence[int] | None = None) -> Path:
    """Execute the unfinished runs of a comparison, write summary.json and return the folder.

    With ``seeds``, only the runs of these seeds are executed and no summary is written, so that the
    work can be split between machines.
    """
    if config.compare is None:
        raise ValueError(f"{config.title}: no section `compare`; see `mm-numeric cp clock_tiny`.")
    folder = Path(config.compare.output_dir)
    config = with_resolved_vary(config, folder)
    assert config.compare is not None
    for row in compared_rows(config):
        for term in (own for trial in row.trials for own in trial.config.objective.spec.terms):
            make_term(term.name, term.options, f"{config.title}, compare, {row.name}")
        if row.config.predict.rule not in config.compare.decode:
            raise ValueError(
                f"{config.title}, compare.decode: predict.decode is {row.config.predict.decode}, "
                f"which is not one of {list(config.compare.decode)}; add the rule "
                f"{row.config.predict.rule}, or remove predict.decode."
            )
        if row.config.model.baseline is not None and config.compare.decode != (GREEDY,):
            raise ValueError(
                f"{config.title}, compare.decode: the baseline {row.name} predicts its answers "
                f"without a distribution over texts; use [{GREEDY}], or compare it on its own."
            )
    for seed in seeds or ():
        if seed not in config.compare.seeds:
            raise ValueError(f"compare.seeds: {seed} is not one of {list(config.compare.seeds)}.")
    _load_data_once(config, (seeds or config.compare.seeds)[0])
    if seeds is not None:
        claim(folder, config, ignore=_MAY_DIFFER)
        _run_open(config, seeds)
        return folder
    with locked(folder):
        claim(folder, config, ignore=_MAY_DIFFER)
        for seed in config.compare.seeds:
            for run in seed_runs(config, seed):
                if (run.output_dir / CONFIG).is_file():
                    claim(run.output_dir, run)
        # Seeds and objectives may be added; claim has rejected other changes.
        write_config(folder, config)
        while left := _open_runs(config, config.compare.seeds):
            if config.compare.jobs > 1:
                _run_in_processes(config, folder, left)
            else:
                _run_open(config, config.compare.seeds)
        write_summary(config, folder)
    return folder


class _Run(NamedTuple):
    """A run to execute: train it unless it is trained, answer rows, and score the answers."""

    config: Config
    rules: Sequence[str]
    """Decoding rules of the answers, of which ``greedy`` is the first."""

    select_on: DataSource | None
    """Rows to answer; None: the test rows."""

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


def _run_open(config: Config, seeds: Sequence[int]) -> None:
    while left := _open_runs(config, seeds):
        for run in progress(left, desc="comparing", unit="run"):
            _run(run)


def _open_runs(config: Config, seeds: Sequence[int]) -> list[_Run]:
    """Return the unfinished runs of some seeds, in the order of execution.

    If settings are tuned, these are all trials, which answer the rows of ``compare.select_on``. If
    the trials of all seeds are finished, they are the chosen ones, which answer the test rows.
    """
    assert config.compare is not None
    rules, select_on = config.compare.decode, config.compare.select_on
    configs = [own for seed in seeds for own in seed_runs(config, seed)]
    runs = []
    for own in configs:
        is_trial = select_on is not None and not own.output_dir.name.startswith(WARM_START)
        runs.append(_Run(own, (GREEDY,), select_on) if is_trial else _Run(own, rules, None))
    left = [run for run in runs if not run.is_finished()]
    if left or select_on is None:
        return left
    chosen = {row.folder for row in chosen_rows(config)}
    runs = [_Run(own, rules, None) for own in configs if own.output_dir.name in chosen]
    return [run for run in runs if not run.is_finished()]


def seed_runs(config: Config, seed: int) -> list[Config]:
    """Return the configs of all training runs with one seed, in the order of execution.

    Each warm start (a model trained with cross-entropy) comes before the runs that continue from
    its weights. ``model.name`` of these runs is the folder with the weights.
    """
    assert config.compare is not None
    folder, vary = Path(config.compare.output_dir) / f"seed{seed}", config.compare.vary
    warm_objective = read_objective("ce", "compare.warm_start")
    runs: dict[str, Config] = {}
    for row in compared_rows(config):
        start = folder / row.warm_start
        if row.warm_start not in runs:
            warm = replace(row.config, objective=warm_objective, distil=None)
            warm = replace(warm, trainer=row.warm_trainer)
            runs[row.warm_start] = run_of_seed(warm, seed, vary, start)
        model = replace(row.config.model, name=str(start / "model"), revision="main")
        for trial in row.trials:
            own = replace(trial.config, model=model)
            runs[trial.name] = run_of_seed(own, seed, vary, folder / trial.name)
    return list(runs.values())


def _run(run: _Run) -> None:
    """Train or resume one run, generate its answers, and score them under each decoding rule."""
    config, folder = run.config, run.config.output_dir
    started = time.monotonic()
    name = f"{folder.parent.name} {folder.name}{' (selection)' * (run.select_on is not None)}"
    if not _is_trained(run):
        tqdm.write(f"{name:<22} failed: {failure(run.answers)}", file=sys.stdout)
        return
    # From here the folder's own config is used. It names the same code as the user's config.
    claim(folder, config)
    if run.select_on is None:
        _answer(folder, run.rules)
    else:
        _answer_selection(folder, run.select_on)
    scores = [
        score(run.answers / decoded_name(PREDICTIONS, rule), task_name=config.task_name)
        for rule in run.rules
    ]
    _delete_checkpoints(folder)  # the model is saved, and a comparison has many runs
    headline = scores[0].scorer.metrics[0]
    values = [in_unit(float(headline.value(own.columns)), headline.unit) for own in scores]
    others = [f"   {rule} {value:>8}" for rule, value in zip(run.rules, values, strict=True)][1:]
    text = f"{name:<22} {headline.label} {values[0]:>8}{''.join(others)}"
    tqdm.write(f"{text}   {time.monotonic() - started:4.0f} s", file=sys.stdout)
    sys.stdout.flush()


def _is_trained(run: _Run) -> bool:
    """Train or resume a run unless it is trained; return False if it is a trial that failed."""
    from mm_numeric.comparison.teachers import link_teacher
    from mm_numeric.data.examples import NoAnswersError
    from mm_numeric.training.errors import NotFiniteError
    from mm_numeric.training.run import train

    folder = run.config.output_dir
    if (folder / FINISHED).is_file():
        return True
    if run.config.distil:
        link_teacher(run.config)
    try:
        train(run.config, resume=is_resumable(folder))
    except (NotFiniteError, NoAnswersError) as error:
        if run.select_on is None:
            raise
        write_failure(run.answers, str(error))
        _delete_checkpoints(folder)
        return False
    return True


def _delete_checkpoints(folder: Path) -> None:
    for checkpoint in folder.rglob("checkpoint-*"):
        shutil.rmtree(checkpoint)


def _answer(folder: Path, rules: Sequence[str]) -> None:
    """Answer the test samples of a finished run under each decoding rule, in one pass."""
    from mm_numeric.inference.digit_distribution import write_digit_distribution
    from mm_numeric.inference.generate import predict

    _delete_other_answers(folder, decoded=tuple(rules) != (GREEDY,))
    predict(folder, None, folder / PREDICTIONS, trust_remote_code=True, rules=tuple(rules))
    if not (folder / DIGITS).is_file():
        write_digit_distribution(folder, trust_remote_code=True)


def _answer_selection(folder: Path, source: DataSource) -> None:
    """Answer the rows of ``compare.select_on`` greedily; replace answers to other rows."""
    from mm_numeric.inference.generate import predict

    answers = folder / SELECTION
    if not selected_on(answers, source):
        shutil.rmtree(answers, ignore_errors=True)
        write_source(answers, source)
    predict(folder, source, answers / PREDICTIONS, trust_remote_code=True, rules=(GREEDY,))


def _delete_other_answers(folder: Path, *, decoded: bool) -> None:
    """Delete predictions.jsonl if its rows lack the field ``decode`` and need it, or have it.

    Greedy answers have this field, with their confidence, only if they are decoded together with
    other rules. The text is the same, so nothing is lost if rules are added or removed.
    """
    path = folder / PREDICTIONS
    if not path.is_file():
        return
    if b"\n" in path.read_bytes():  # a complete row
        _, first = next(read_rows(path))
        if ("decode" in first) == decoded:
            return
    for name in (RESULTS, PREDICTIONS, f"{PREDICTIONS}.made_by.json"):
        (folder / name).unlink(missing_ok=True)


def _run_in_processes(config: Config, folder: Path, left: Sequence[_Run]) -> None:
    """Execute the runs in one process per seed, with ``compare.jobs`` processes at a time."""
    assert config.compare is not None
    folders = {run.config.output_dir.parent for run in left}
    seeds = [seed for seed in config.compare.seeds if folder / f"seed{seed}" in folders]
    threads = max(1, (os.cpu_count() or 1) // config.compare.jobs)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), PARENT: str(os.getpid())}
    waiting, running = list(seeds), dict[int, subprocess.Popen[bytes]]()
    bar = progress(desc="comparing", unit="run", total=len(left))
    try:
        while waiting or running:
            while waiting and len(running) < config.compare.jobs:
                seed = waiting.pop(0)
                command = [sys.executable, "-m", "mm_numeric", "compare", str(folder / CONFIG)]
                command += ["--seeds", str(seed)]
                log = (folder / f"seed{seed}.log").open("ab")
                running[seed] = subprocess.Popen(command, env=environment, stderr=log)
            time.sleep(0.5)
            bar.update(sum(run.is_finished() for run in left) - bar.n)
            for seed, process in list(running.items()):
                if process.poll() is not None:
                    del running[seed]
                    _check_exit(folder, seed, process.returncode)
    finally:
        bar.close()
        for process in running.values():
            process.terminate()


def _check_exit(folder: Path, seed: int, code: int) -> None:
    """Raise SeedFailedError with the last log line if the process of ``seed`` has failed."""
    if not code:
        return
    log = folder / f"seed{seed}.log"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    message = lines[-1].removeprefix("mm-numeric: ") if lines else "no message"
    raise SeedFailedError(
        f"seed {seed} failed: {message} (see {log}); finished runs are kept, run compare again to "
        "continue.",
        code,
    )


PARENT = "MM_NUMERIC_COMPARE_PARENT"
"""Environment variable with the id of the main process, set for the process of each seed."""


def exit_with_parent() -> None:
    """Start a thread that exits this process when the main process ends or is killed.

    Does nothing unless ``_run_in_processes`` started this process to run a seed.
    """
    parent = os.environ.get(PARENT)
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _load_data_once(config: Config, seed: int) -> None:
    """Load the data of one seed and check decoding rules, to report errors before any training."""
    from mm_numeric.data.examples import load_examples
    from mm_numeric.inference.decode import check_rules
    from mm_numeric.training.distil import check_distillation

    assert config.compare is not None
    rows = compared_rows(config)
    unlike = {f"{row.warm_start} {row.config.predict} {row.config.distil}": row for row in rows}
    for row in unlike.values():
        own = run_of_seed(row.config, seed, config.compare.vary, row.config.output_dir)
        if own.distil:
            check_distillation(own)
        cache = Path(own.data.cache)
        load_examples(own.task, own.data.train, cache, training=True)
        tests = load_examples(own.task, own.data.test, cache, training=False)
        check_rules(own.predict, config.compare.decode, own.task, tests)
        if config.compare.select_on:
            load_examples(own.task, config.compare.select_on, cache, training=False)
