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

Finished runs are not repeated. An interrupted run resumes from its last checkpoint. If a decoding
rule is added to ``compare.decode``, finished runs answer the test samples again, without training.
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

from tqdm import tqdm

from mm_numeric.comparison.rows import compared_rows
from mm_numeric.comparison.seeds import run_of_seed, with_resolved_vary
from mm_numeric.comparison.summary import write_summary
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
    claim,
    decoded_name,
    last_checkpoint,
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
        for term in row.config.objective.spec.terms:
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
        left = [seed for seed in config.compare.seeds if _open_runs(config, [seed])]
        if left and config.compare.jobs > 1:
            _run_in_processes(config, folder, left)
        else:
            _run_open(config, left)
        write_summary(config, folder)
    return folder


def _run_open(config: Config, seeds: Sequence[int]) -> None:
    assert config.compare is not None
    for run in progress(_open_runs(config, seeds), desc="comparing", unit="run"):
        _run(run, config.compare.decode)


def _open_runs(config: Config, seeds: Sequence[int]) -> list[Config]:
    """Return the configs of unfinished runs, in execution order.

    A run is finished if it has results.json, and results.RULE.json for each other decoding rule.
    """
    assert config.compare is not None
    results = [decoded_name(RESULTS, rule) for rule in config.compare.decode]
    runs = [run for seed in seeds for run in seed_runs(config, seed)]
    return [run for run in runs if not all((run.output_dir / name).is_file() for name in results)]


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
            warm = replace(row.config, objective=warm_objective, trainer=row.warm_trainer)
            runs[row.warm_start] = run_of_seed(warm, seed, vary, start)
        model = replace(row.config.model, name=str(start / "model"), revision="main")
        own = replace(row.config, model=model)
        runs[row.name] = run_of_seed(own, seed, vary, folder / row.name)
    return list(runs.values())


def _run(config: Config, rules: Sequence[str]) -> None:
    """Train or resume one run, generate answers to the test questions, and score the answers.

    The answers are decoded and scored under each of ``rules``, of which ``greedy`` is the first.
    """
    from mm_numeric.inference.digit_distribution import write_digit_distribution
    from mm_numeric.training.run import train

    folder = config.output_dir
    started = time.monotonic()
    if not (folder / FINISHED).is_file():
        train(config, resume=last_checkpoint(folder) is not None)
    # From here the folder's own config is used. It names the same code as the user's config.
    claim(folder, config)
    _answer(folder, rules)
    if not (folder / DIGITS).is_file():
        write_digit_distribution(folder, trust_remote_code=True)
    scores = [
        score(folder / decoded_name(PREDICTIONS, rule), task_name=config.task_name)
        for rule in rules
    ]
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)  # the model is saved, and a comparison has many runs
    headline = scores[0].scorer.metrics[0]
    values = [in_unit(float(headline.value(own.columns)), headline.unit) for own in scores]
    others = [f"   {rule} {value:>8}" for rule, value in zip(rules, values, strict=True)][1:]
    name = f"{folder.parent.name} {folder.name}"
    text = f"{name:<22} {headline.label} {values[0]:>8}{''.join(others)}"
    tqdm.write(f"{text}   {time.monotonic() - started:4.0f} s", file=sys.stdout)
    sys.stdout.flush()


def _answer(folder: Path, rules: Sequence[str]) -> None:
    """Answer the test samples of a finished run under each decoding rule, in one pass."""
    from mm_numeric.inference.generate import predict

    _delete_other_answers(folder, decoded=tuple(rules) != (GREEDY,))
    predict(folder, None, folder / PREDICTIONS, trust_remote_code=True, rules=tuple(rules))


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


def _run_in_processes(config: Config, folder: Path, seeds: list[int]) -> None:
    """Execute the runs in one process per seed, with ``compare.jobs`` processes at a time."""
    assert config.compare is not None
    threads = max(1, (os.cpu_count() or 1) // config.compare.jobs)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), PARENT: str(os.getpid())}
    waiting, running = list(seeds), dict[int, subprocess.Popen[bytes]]()
    total = sum(len(seed_runs(config, seed)) for seed in seeds)
    bar = progress(desc="comparing", unit="run", total=total)
    try:
        while waiting or running:
            while waiting and len(running) < config.compare.jobs:
                seed = waiting.pop(0)
                command = [sys.executable, "-m", "mm_numeric", "compare", str(folder / CONFIG)]
                command += ["--seeds", str(seed)]
                log = (folder / f"seed{seed}.log").open("ab")
                running[seed] = subprocess.Popen(command, env=environment, stderr=log)
            time.sleep(0.5)
            bar.update(total - len(_open_runs(config, seeds)) - bar.n)
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

    assert config.compare is not None
    rows = {f"{row.warm_start} {row.config.predict}": row.config for row in compared_rows(config)}
    for config_of_row in rows.values():
        own = run_of_seed(config_of_row, seed, config.compare.vary, config_of_row.output_dir)
        cache = Path(own.data.cache)
        load_examples(own.task, own.data.train, cache, training=True)
        tests = load_examples(own.task, own.data.test, cache, training=False)
        check_rules(own.predict, config.compare.decode, own.task, tests)
