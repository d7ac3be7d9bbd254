"""Compare objectives: train each from the same weights on the same batches, for several seeds.

Each seed has its own initialisation, data order, label noise and synthetic rows (``compare.vary``).
For each seed, each objective is trained from the same weights with the same data order, and
evaluated on the same test samples. Each objective is a row of the result table. A row may also
change other settings, such as the model.

With ``compare.warm_start``, a model is first trained with cross-entropy, and the objectives
continue from its weights; see ``comparison.rows``. A model with its own loss, such as a regression
head with squared error, also uses this loss in its warm start. Output:

    summary.json, report.html, report.md
    seedS/warm_start*/, seedS/ROW/    run folders with predictions, scores and results
    ensembles/ROW/SEEDS/              answers of ensembles (the runs of all seeds), if any
    seedS/ROW_SETTINGS/               trials of ``compare.tune``, for the seeds ``tune_seeds``

Finished runs are not repeated. An interrupted run resumes from its last checkpoint. If a decoding
rule is added to ``compare.decode``, finished runs answer the test samples again, without training.
Several processes may execute the runs of one folder: a process skips runs of other processes.

With ``compare.tune``, each row is first trained with each combination of the settings (a trial) and
each of ``compare.tune_seeds``. Trials answer the rows of ``compare.select_on``. When all trials
have answered, the rows are trained with the settings of their best trials. A trial fails if its
loss diverges, or if ``distil`` finds no parseable answers to train on; it is not repeated.
"""

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mm_numeric.comparison.hypotheses import record_hypotheses
from mm_numeric.comparison.plan import (
    Run,
    all_seeds,
    check_run,
    check_seeds,
    ensemble_folder,
    open_runs,
    overview,
    planned_runs,
    training_settings,
    waits_for,
)
from mm_numeric.comparison.rows import (
    compared_rows,
    decoding_rules,
    read_comparison,
    stated_hypotheses,
)
from mm_numeric.comparison.seeds import run_of_seed, with_resolved_vary
from mm_numeric.comparison.selection import (
    SELECTION,
    chosen_rows,
    failure,
    selected_on,
    write_failure,
    write_source,
)
from mm_numeric.comparison.summary import SUMMARY, write_summary
from mm_numeric.config.data import DataSource
from mm_numeric.config.decoding import GREEDY
from mm_numeric.config.schema import Config
from mm_numeric.distributed.ranks import PARALLEL_RUNS, EveryRankError, num_ranks
from mm_numeric.evaluation.metrics.base import CATEGORY, metrics_by_category
from mm_numeric.evaluation.score import score
from mm_numeric.evaluation.score_text import in_unit
from mm_numeric.inference.predictions_file import record_of
from mm_numeric.io.atomic_files import LockedError, locked
from mm_numeric.io.files import read_rows
from mm_numeric.io.log import ONCE, Waiting, logger, progress, show, without_repeats
from mm_numeric.losses.term import make_term
from mm_numeric.registry import ENGINES, LOCAL_ENGINE, choose, scorer_of, unknown
from mm_numeric.runs.folder import (
    CONFIG,
    FINISHED,
    LOG,
    MODEL,
    PREDICTIONS,
    RESULTS,
    claim,
    decoded_name,
    is_resumable,
    read_run,
    stored_settings,
    write_config,
)
from mm_numeric.runs.trust import named_code

_MAY_DIFFER = {"compare", "objective", "plugins"}  # sections that do not change existing runs
_KEY = "compare.output_dir"
_LOCK_WAIT_S = 300.0
_POLL_S = 1.0


class RunFailedError(Exception):
    """Raised if a run fails in another process. ``args`` is (error message, exit code)."""


def run_failed(name: str, error: BaseException) -> RunFailedError:
    """Return the error to raise for a run that has failed in another process."""
    code = 2 if isinstance(error, ValueError) else 1
    message = str(error).strip() or type(error).__name__
    return RunFailedError(
        f"{name} failed: {message} Finished runs are kept; run compare again to continue.", code
    )


def compare(
    config: Config,
    *,
    seeds: Sequence[int] | None = None,
    engine: str = LOCAL_ENGINE,
    partial: bool = False,
) -> Path:
    """Execute the unfinished runs of a comparison, write summary.json and return the folder.

    ``mm_numeric.api.compare`` explains the arguments.
    """
    if num_ranks() > 1:  # ranks would write the same files, and wait for each other
        raise EveryRankError(
            "compare: a run of a comparison is one process; start compare without a launcher such "
            "as torchrun. --seeds and --engine split the runs between GPUs."
        )
    execute = choose(engine, ENGINES, "engine", "--engine")
    if seeds is not None and engine != LOCAL_ENGINE:
        raise ValueError(
            f"--seeds cannot be combined with --engine {engine}, which splits the work."
        )
    check_seeds(config, seeds)
    folder = Path(config.comparison.output_dir)
    config = with_resolved_vary(config, folder)
    for row in compared_rows(config):
        for term in (own for trial in row.trials for own in trial.config.objective.spec.terms):
            make_term(term.name, term.options, f"{config.title}, compare, {row.name}")
        if row.config.predict.rule not in config.comparison.decode:
            raise ValueError(
                f"{config.title}, compare.decode: predict.decode is {row.config.predict.decode}, "
                f"which is not one of {list(config.comparison.decode)}; add the rule "
                f"{row.config.predict.rule}, or remove predict.decode."
            )
    _load_data_once(config, (seeds or config.comparison.seeds)[0])
    if seeds is not None:
        _claim(folder, config, seeds)
        logger.info("%s", overview(config, seeds))
        while left := open_runs(config, seeds):
            execute_here(left)
        return folder
    with locked(folder):
        _claim(folder, config, all_seeds(config))
        # Seeds and objectives may be added; claim has rejected other changes.
        _warn_of_replaced_rows(config, folder)
        write_config(folder, config)
        logger.info("%s", overview(config, all_seeds(config)))
        while left := open_runs(config, all_seeds(config)):
            execute(config, folder, left)
        with without_repeats():
            answer_ensembles(config, folder)
            write_summary(config, folder, partial=partial)
    return folder


def _claim(folder: Path, config: Config, seeds: Sequence[int]) -> None:
    """Prepare the folder, check the runs that it contains, and record the hypotheses."""
    claim(folder, config, ignore=_MAY_DIFFER, key=_KEY)
    for run in planned_runs(config, seeds):
        check_run(run.config)
    record_hypotheses(folder, stated_hypotheses(config))


def _warn_of_replaced_rows(config: Config, folder: Path) -> None:
    """Log a warning if summary.json has rows or seeds that the config does not list.

    The summary may belong to another experiment, whose config names the same folder.
    """
    if not (folder / SUMMARY).is_file():
        return
    before = read_comparison(folder / CONFIG)
    names = {row.name for row in compared_rows(config)}
    lost = [row.name for row in compared_rows(before) if row.name not in names]
    seeds = [seed for seed in before.comparison.seeds if seed not in config.comparison.seeds]
    lost += [f"seed {seed}" for seed in seeds]
    if lost:
        logger.warning(
            "%s: its %s and report have %s, which this config does not list, and will be replaced. "
            "The runs are kept: `mm-numeric compare` with the config that lists them writes both "
            "files again. To keep both results, choose another compare.output_dir.",
            *(folder, SUMMARY, ", ".join(lost[:3]) + (", ..." if len(lost) > 3 else "")),
        )


def execute_here(runs: Sequence[Run]) -> None:
    """Execute runs in this process, one after the other, except runs of other processes.

    The next run is the first one that is not finished, that no other process executes, and that
    waits for no unfinished run. If there is none, wait for the other processes.
    """
    needed, left = waits_for(runs), {run.name: run for run in runs}
    # Each training logs its own lines.
    bar = progress(desc="comparing", unit="run", total=len(left), lines=False)
    waiting = None
    with without_repeats():
        while left := {name: run for name, run in left.items() if not run.is_finished()}:
            bar.update(len(runs) - len(left) - bar.n)
            ready = [run for run in left.values() if left.keys().isdisjoint(needed[run.name])]
            if any(_run_if_free(run) for run in ready):
                waiting = None
                continue
            logger.info("waiting for runs that other processes execute", extra=ONCE)
            names = ", ".join(run.name for run in ready)
            waiting = waiting or Waiting(f"runs that other processes execute ({names})")
            waiting.check()
            time.sleep(_POLL_S)
    bar.update(len(runs) - bar.n)
    bar.close()


def _run_if_free(run: Run) -> bool:
    """Execute a run and return True, or return False if another process executes it."""
    try:
        _run(run)
    except LockedError:
        return False
    return True


def execute_one(folder: Path, name: str, cpus: int, *_: None) -> None:
    """Execute the run ``name`` of the comparison in ``folder``, such as ``seed0/ce``.

    An engine calls this in another process, perhaps on another machine, while ``compare`` waits.
    Nothing is done if the run is finished. The lock of a process that was lost may take minutes to
    be released. Further arguments, results of runs that this run waits for, are not used.
    """
    import torch

    torch.set_num_threads(cpus)
    os.environ[PARALLEL_RUNS] = "1"
    config = with_resolved_vary(read_comparison(folder / CONFIG), folder)
    for run in open_runs(config, all_seeds(config)):
        deadline = time.monotonic() + _LOCK_WAIT_S
        waiting = Waiting(f"{name}, which another process executes")
        while run.name == name and not run.is_finished():
            try:
                _run(run)
            except LockedError:
                if time.monotonic() > deadline:
                    raise
                waiting.check()
                time.sleep(_POLL_S)


def _run(run: Run) -> None:
    """Execute one run; raise LockedError if another process executes it or uses its folder."""
    folder = run.config.output_dir
    with locked(folder.with_name(f"{folder.name}.run"), "run"):
        if not run.is_finished():
            _train_and_score(run)


def _train_and_score(run: Run) -> None:
    """Train or resume one run, generate its answers, and score them under each decoding rule."""
    config, folder = run.config, run.config.output_dir
    started = time.monotonic()
    name = f"{folder.parent.name} {folder.name}{' (selection)' * (run.select_on is not None)}"
    if not _is_trained(run):
        show(f"{name:<22} failed: {failure(run.answers)}")
        return
    # From here the folder's own config is used. It names the same code as the user's config.
    claim(folder, config)
    if run.select_on is None:
        _answer(folder, run.rules)
    else:
        _answer_selection(folder, run.select_on)
    scores = [
        score(
            run.answers / decoded_name(PREDICTIONS, rule),
            task_name=config.task_name,
            scorer=config.task.scorer,
        )
        for rule in run.rules
    ]
    _delete_checkpoints(folder)  # the model is saved, and a comparison has many runs
    headline = scores[0].metrics_on_rows[0].metric
    values = [in_unit(own.metrics()[headline.name]["value"], headline.unit) for own in scores]
    others = [f"   {rule} {value:>8}" for rule, value in zip(run.rules, values, strict=True)][1:]
    text = f"{name:<22} {headline.label} {values[0]:>8}{''.join(others)}"
    show(f"{text}   {time.monotonic() - started:4.0f} s")
    sys.stdout.flush()


def _is_trained(run: Run) -> bool:
    """Train or resume a run unless it is trained; return False if it is a trial that failed."""
    from mm_numeric.data.examples import NoAnswersError
    from mm_numeric.training.errors import NotFiniteError
    from mm_numeric.training.run import train

    folder = run.config.output_dir
    if (folder / FINISHED).is_file():
        return True
    if run.config.distil:
        link_teacher(run.config)
    logger.info("training %s", run.name)
    try:
        train(run.config, resume=is_resumable(folder))
    except (NotFiniteError, NoAnswersError) as error:
        if run.select_on is None:
            raise
        write_failure(run.answers, str(error))
        _delete_checkpoints(folder)
        return False
    return True


def link_teacher(config: Config) -> None:
    """Reuse a finished run with equal settings and seed as the teacher of a run with ``distil``.

    A teacher is trained like a run without ``distil``, which is often another row of the
    comparison. The files of that row's run are linked, or copied where the file system has no hard
    links. Nothing is done if there is no such run, or if the training of the teacher has begun.
    """
    from mm_numeric.training.distil import teacher_of

    teacher = teacher_of(config)
    if teacher.output_dir.exists():
        return
    for other in sorted(path.parent for path in config.output_dir.parent.glob(f"*/{FINISHED}")):
        if not _is_equal(other, teacher):
            continue
        claim(config.output_dir, config)
        unfinished = teacher.output_dir.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(other / MODEL, unfinished / MODEL, copy_function=_link)
        for name in (LOG, FINISHED):
            _link(other / name, unfinished / name)
        write_config(unfinished, teacher)
        unfinished.rename(teacher.output_dir)
        return


def _is_equal(folder: Path, teacher: Config) -> bool:
    """Return True if the run in a folder is trained like the teacher; False if it is unreadable."""
    try:
        # Compared first, because reading a config imports the modules that it names.
        if named_code(stored_settings(folder)) != named_code(teacher.to_dict()):
            return False
        own = read_run(folder, trust_remote_code=True)
    except ValueError:
        return False
    return training_settings(own) == training_settings(teacher)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _delete_checkpoints(folder: Path) -> None:
    for checkpoint in folder.rglob("checkpoint-*"):
        shutil.rmtree(checkpoint)


def _answer(folder: Path, rules: Sequence[str]) -> None:
    from mm_numeric.inference.generate import predict

    _delete_other_answers(folder, decoded=tuple(rules) != (GREEDY,))
    predict(folder, None, folder / PREDICTIONS, trust_remote_code=True, rules=tuple(rules))


def _answer_selection(folder: Path, source: DataSource) -> None:
    """Answer the rows of ``compare.select_on`` greedily; replace answers to other rows."""
    from mm_numeric.inference.generate import predict

    answers = folder / SELECTION
    if not selected_on(answers, source):
        shutil.rmtree(answers, ignore_errors=True)
        write_source(answers, source)
    predict(folder, source, answers / PREDICTIONS, trust_remote_code=True, rules=(GREEDY,))


def answer_ensembles(config: Config, folder: Path) -> None:
    """Answer the test rows with the ensemble of each objective (its runs of all seeds).

    The runs' distributions over answers are averaged, and each decoding rule other than ``greedy``
    chooses from the average. Nothing is done without ``compare.ensemble``.
    """
    from mm_numeric.inference.generate import predict

    for row in chosen_rows(config) if config.comparison.ensemble else ():
        if rules := tuple(decoding_rules(config, row.config)[1:]):
            runs = [folder / f"seed{seed}" / row.name for seed in config.comparison.seeds]
            logger.info("answering with the ensemble of %s", row.name)
            out = ensemble_folder(row, config, folder) / decoded_name(PREDICTIONS, rules[0])
            predict(runs, None, out, trust_remote_code=True, rules=rules)


def _delete_other_answers(folder: Path, *, decoded: bool) -> None:
    """Delete predictions.jsonl if its rows wrongly have or lack the field ``decode``.

    Greedy answers have this field, with their confidence, only if they are decoded together with
    other rules (``decoded``). The text is the same, so nothing is lost.
    """
    path = folder / PREDICTIONS
    if not path.is_file():
        return
    if b"\n" in path.read_bytes():  # a complete row
        _, first = next(read_rows(path))
        if ("decode" in first) == decoded:
            return
    for file in (folder / RESULTS, path, record_of(path)):
        file.unlink(missing_ok=True)


def _load_data_once(config: Config, seed: int) -> None:
    """Load the data of one seed and check decoding rules, to report errors before any training."""
    from mm_numeric.data.examples import load_examples
    from mm_numeric.inference.decode import check_rules
    from mm_numeric.training.distil import check_distillation

    configs = [row.config for row in compared_rows(config)]
    unlike = {repr((own.task, own.data, own.predict, own.distil)): own for own in configs}
    for of_row in unlike.values():
        own = run_of_seed(of_row, seed, config.comparison.vary, of_row.output_dir)
        if own.distil:
            check_distillation(own)
        cache = Path(own.data.cache)
        load_examples(own.task, own.data.train, cache, training=True)
        tests = load_examples(own.task, own.data.test, cache, training=False)
        check_rules(own.predict, config.comparison.decode, own.task, tests)
        if config.comparison.select_on:
            tests += load_examples(own.task, config.comparison.select_on, cache, training=False)
        for example in tests:
            if example.answer is None:
                raise ValueError(
                    f"{example.where}: the row has no answer, and `compare` scores with it; add "
                    "one, or remove the row."
                )
        scorer = scorer_of(own.task, own.task_name, tests[0].answer, config.title)
        categories = [example.buckets.get(CATEGORY, "none") for example in tests]
        known = {metric.name for metric, _ in metrics_by_category(scorer, categories)}
        named = {"metric": config.comparison.metric}
        for index, group in enumerate(config.comparison.hypotheses):
            named[f"hypotheses.{index}"] = group.metric
        for where, metric in named.items():
            if metric is not None and metric not in known:
                raise unknown(metric, known, "metric", f"{config.title}, compare.{where}")
