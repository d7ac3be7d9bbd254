"""The commands of ``mm-numeric`` as functions: ``from mm_numeric import train, predict, score``.

A config is a ``Config``, the path of a file, or the name of a shipped config. Invalid input raises
ValueError with the message that the command prints. Does not import torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_numeric.config.data import DataSource, Sources
from mm_numeric.config.decoding import GREEDY
from mm_numeric.config.reader import read_config
from mm_numeric.config.schema import Config
from mm_numeric.distributed.ranks import EveryRankError, num_ranks
from mm_numeric.io.files import read_json, read_rows
from mm_numeric.io.log import NO_PREFIX, logger, stage
from mm_numeric.registry import IMPORTERS, LOCAL_ENGINE, choose, unknown
from mm_numeric.runs.folder import (
    CALIBRATION_ANSWERS,
    ENSEMBLE,
    FINISHED,
    MODEL,
    PREDICTIONS,
    TRAINING_ANSWERS,
    contains_run,
    decoded_name,
    is_resumable,
    require_free,
)

if TYPE_CHECKING:
    from mm_numeric.evaluation.scores import Scores
    from mm_numeric.importers.export import Target
    from mm_numeric.importers.prepare import Prepared
    from mm_numeric.inference.calibrate import Calibration


@dataclass(frozen=True)
class TrainedRun:
    """A finished training run, stored in a folder."""

    folder: Path

    @property
    def model(self) -> Path:
        """Return the folder with the weights of the trained model."""
        return self.folder / MODEL

    @property
    def facts(self) -> dict[str, Any]:
        """Return the content of run.json: steps, rows, seconds, modules and other metadata."""
        return read_json(self.folder / FINISHED)


@dataclass(frozen=True)
class Predictions:
    """The answers of a model, stored in a file."""

    path: Path

    count: int
    """Number of answers that the call has added to the file."""

    config: Config
    """The config of the model's run."""

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """Return the rows of the file: ``id``, ``text``, ``parsed``, ``target`` and others."""
        return [row for _, row in read_rows(self.path)]


@dataclass(frozen=True)
class ReportedRun(TrainedRun):
    """A finished run whose test answers are scored, with its report."""

    report: Path
    scores: "Scores | None"
    """The scores of the test answers; None if they had been scored before."""


@dataclass(frozen=True)
class ComparedRuns:
    """The runs of a comparison, stored in a folder."""

    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        """Return the content of summary.json: the metrics of each objective, and the runs."""
        from mm_numeric.evaluation.report.summary_file import read_summary

        return read_summary(self.folder)


def run(config: Config | str | Path, *, stoppable: bool = False) -> ReportedRun:
    """Check the data, train, predict, score and write the report. A finished step is not repeated.

    The data is checked again until the training has a checkpoint, from which an interrupted
    training resumes. ``predict`` copies the answers of the last evaluation that it would generate
    again. ``train`` describes ``stoppable`` and StoppedError. Raises ValueError if something in the
    data must be fixed first.
    """
    if num_ranks() > 1:
        raise EveryRankError(
            "run: start it without a launcher such as torchrun. To train on several GPUs, start "
            "`train` with the launcher; `run` with the same config then does the other steps."
        )
    config = config if isinstance(config, Config) else read_config(config)
    folder = config.output_dir
    if not contains_run(folder, config):
        require_free(folder)
        with stage("1/5"):
            page = _checked_page(config)
        _log_step(f"1/5 check-data: ready; {page}")
    if not (folder / FINISHED).is_file():
        with stage("2/5"):
            train(config, resume=is_resumable(folder), stoppable=stoppable)
        _log_step(f"2/5 train: {folder / MODEL}")
    # The folder's config names the same code as the user's config. Its section predict may differ.
    settings = {own.name: getattr(config.predict, own.name) for own in fields(config.predict)}
    if config.predict.max_new_tokens is None:
        del settings["max_new_tokens"]  # the training has measured it
    with stage("3/5"):
        answers = predict(folder, reuse=True, trust_remote_code=True, **settings).path
    return _scored_and_reported(config, answers)


def _checked_page(config: Config) -> Path:
    """Check the data of a config, and return the page; raise ValueError if it is not ready."""
    from mm_numeric.evaluation.check_data.check import check_data
    from mm_numeric.evaluation.check_data.html_page import page_of, write_check_page
    from mm_numeric.evaluation.check_data.text import fixes_text, verdict

    config.require_weights()
    found, page = check_data(config), page_of(config)
    write_check_page(found, page)
    if not found.ready:
        raise ValueError(f"{config.title}: {verdict(found)}; {page}\n{fixes_text(found)}")
    if unanswered := found.sources[-1].unanswered:
        raise ValueError(
            f"{config.title}, data.test: `run` scores the rows, and {unanswered:,} of them have no "
            "answer; add answers, or use the commands `train` and `predict`."
        )
    for text in found.notes:
        logger.info("note: %s", text, extra=NO_PREFIX)
    return page


def _scored_and_reported(config: Config, answers: Path) -> ReportedRun:
    """Score the answers of a run and write its report, unless this was done before."""
    from mm_numeric.evaluation.report.report import FORMATS
    from mm_numeric.evaluation.score import score
    from mm_numeric.runs.results_file import is_scored, results_path

    folder, scores, results = config.output_dir, None, results_path(answers)
    if not is_scored(answers):
        _log_step(f"3/5 predict: {answers}")
        with stage("4/5"):
            scores = score(answers, task_name=config.task_name, scorer=config.task.scorer)
        _log_step(f"4/5 score: {results}")
    files = [folder / FORMATS[name] for name in ("html", "md")]
    since = results.stat().st_mtime_ns
    if not all(file.is_file() and file.stat().st_mtime_ns > since for file in files):
        report(folder, trust_remote_code=True)
        _log_step(f"5/5 report: {files[0]}")
    return ReportedRun(folder, files[0], scores)


def _log_step(text: str) -> None:
    logger.info("%s", text, extra=NO_PREFIX)


def train(
    config: Config | str | Path,
    *,
    resume: bool = False,
    stoppable: bool = False,
    trust_remote_code: bool = False,
) -> TrainedRun:
    """Fine-tune a model, and save it in ``trainer.output_dir`` of the config.

    Args:
        config: The config of the run.
        resume: Resume from the last checkpoint of the run folder.
        stoppable: Save a checkpoint and stop when SIGTERM, SIGUSR1 or SIGINT is received.
        trust_remote_code: Resume even from a DeepSpeed or FSDP checkpoint whose files contain other
            objects than tensors. Loading such files could execute code.

    Raises:
        StoppedError: If a signal stopped the run.
    """
    from mm_numeric.training.run import train as run

    config = config if isinstance(config, Config) else read_config(config)
    run(
        config,
        resume=resume,
        stoppable=stoppable,
        trust_remote_code=trust_remote_code,
        draw=_write_page,
    )
    return TrainedRun(config.output_dir)


def _write_page(folder: Path) -> None:
    """Write the page of a run with its curves and answers of the last evaluation."""
    try:
        report(folder, ["html"], trust_remote_code=True)
    except ValueError as error:  # the training is worth more than its page
        logger.warning("report.html is not written: %s", error)


def predict(
    run: str | Path | Sequence[str | Path],
    data: str | Path | None = None,
    out: str | Path | None = None,
    *,
    images: str | Path | None = None,
    training_rows: bool = False,
    trust_remote_code: bool = False,
    overrides: Sequence[str] = (),
    endpoint: Any = None,
    limit: int | None = None,
    on_ray: Any = None,
    reuse: bool = False,
    **settings: Any,
) -> Predictions:
    """Answer the rows of a file with the model of a run; skip rows that ``out`` has an answer to.

    Args:
        run: Folder of a finished run; with ``endpoint`` also a config. Several runs form an
            ensemble: their distributions over answers are averaged. It cannot decode greedily.
        data: File with the rows to answer. None: the test rows of the run's config.
        out: A .jsonl file, which is appended to. None: a file in the folder of the run.
        images: Folder of the images of ``data``.
        training_rows: Answer the training rows of the config instead, to train on the answers.
        trust_remote_code: Allow a config that refers to Python code, such as a task of your own.
        overrides: Changed settings of the sections task, data and predict, such as
            ``("task.other_labels=drop",)``.
        endpoint: An ``inference.endpoint.Endpoint`` (a server), which then generates the answers.
        limit: Answer only ``limit`` rows, which are spread evenly over the file.
        on_ray: Answer the rows in tasks of a Ray cluster, each of which reserves these
            ``config.compare.Resources``.
        reuse: Copy the answers of the last evaluation during training, if the weights, the rows and
            all settings are the same.
        settings: Changed settings of the section ``predict``, such as ``decode="median"``.
    """
    from mm_numeric.inference.generate import predict as answer
    from mm_numeric.inference.generate import read_model

    runs = [Path(own) for own in ([run] if isinstance(run, str | Path) else run)]
    if endpoint is not None and len(runs) > 1:
        raise ValueError("--endpoint asks one model; name one run or config with --model.")
    if endpoint is not None and not (out or runs[0].is_dir()):
        raise ValueError(f"{runs[0]} is no folder of a run; for a config, add --out FILE.")
    config = read_model(runs[0], endpoint, trust_remote_code, overrides).config
    source: Sources | None = config.data.train if training_rows else None
    if training_rows and not source:
        raise ValueError("--training-rows: the config has no data.train; name rows with --data.")
    if data is not None:
        source = DataSource(path=str(data), images=None if images is None else str(images))
    name = TRAINING_ANSWERS if training_rows else PREDICTIONS if len(runs) == 1 else ENSEMBLE
    _check_names(settings, type(config.predict), "setting", "predict")
    rule = replace(config.predict, **settings).rule
    path = runs[0] / decoded_name(name, rule) if out is None else Path(out)
    if path.is_dir():
        raise ValueError(f"--out: {path} is a folder; name a file in it.")
    if path.suffix != ".jsonl":
        raise ValueError(f"--out {path}: the file name must end in .jsonl.")
    count = answer(
        runs,
        source,
        path,
        limit=limit,
        trust_remote_code=trust_remote_code,
        endpoint=endpoint,
        on_ray=on_ray,
        overrides=overrides,
        reuse=reuse,
        **settings,
    )
    return Predictions(path, count, config)


def calibrate(
    run: str | Path,
    data: str | Path,
    *,
    images: str | Path | None = None,
    trust_remote_code: bool = False,
    **settings: Any,
) -> "Calibration":
    """Calibrate the confidences of a run, and save the calibration in its folder.

    ``predict`` then applies the calibration to answers that are decoded with the same rule.

    Args:
        run: Folder of a finished run.
        data: File with rows whose answers are known, 250 or more. Questions that are training or
            test questions of the run are left out.
        images: Folder of the images of ``data``.
        trust_remote_code: Allow a config that refers to Python code, such as a task of your own.
        settings: Changed settings of the section ``predict``, such as ``decode="median"``.
    """
    from mm_numeric.evaluation.score import score as score_answers
    from mm_numeric.inference.calibrate import fit_calibration
    from mm_numeric.inference.generate import predict as answer
    from mm_numeric.inference.generate import read_model

    folder = Path(run)
    config = read_model(folder, None, trust_remote_code).config
    _check_names(settings, type(config.predict), "setting", "calibrate")
    rule = replace(config.predict, **settings).rule
    if rule == GREEDY:
        raise ValueError(
            f"{folder}: greedy answers have no confidence; add --decode median, or, for boxes and "
            "lists, --decode mbr."
        )
    source = DataSource(path=str(data), images=None if images is None else str(images))
    out = folder / decoded_name(CALIBRATION_ANSWERS, rule)
    answer(folder, source, out, trust_remote_code=trust_remote_code, calibrates=True, **settings)
    try:
        scores = score_answers(
            out, task_name=config.task_name, scorer=config.task.scorer, write=False
        )
        found = fit_calibration(config, source, out, rule, scores.rows, scores.confidences)
    except ValueError:  # no calibration follows: more rows need new answers
        for path in out.parent.glob(f"*{out.name}*"):
            path.unlink()
        if not any(out.parent.iterdir()):
            out.parent.rmdir()
        raise
    found.write(folder)
    return found


def compare(
    config: Config | str | Path,
    *,
    seeds: Sequence[int] | None = None,
    engine: str = LOCAL_ENGINE,
    partial: bool = False,
) -> ComparedRuns:
    """Train and score the objectives of a comparison, and write its summary and its tables.

    Args:
        config: A config with the section ``compare``.
        seeds: Execute only the runs of these seeds, without a summary, to split the work.
        engine: Name of the engine that executes the runs, in ``mm_numeric.registry.ENGINES``.
        partial: Allow runs that lack answers to some test rows.
    """
    from mm_numeric.comparison.rows import read_comparison
    from mm_numeric.comparison.run import compare as run

    config = config if isinstance(config, Config) else read_comparison(config)
    return ComparedRuns(run(config, seeds=seeds, engine=engine, partial=partial))


def prepare(
    name: str,
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    clip: bool = False,
    strict: bool = False,
    force: bool = False,
    to: "Target | None" = None,
    **options: Any,
) -> "Prepared":
    """Convert files of a published format to rows.

    Args:
        name: Name of the format, such as ``coco``.
        inputs: One input file or folder, or a list of them.
        out: A .jsonl file. ``OUT.prepared.json``, with counts and checksums, is written next to it.
        clip: Clip shapes to their images.
        strict: Raise ValueError for the first invalid object or line, instead of leaving it out.
        force: Replace existing output files.
        to: Another tool for which the data is also written, an ``importers.export.Target``.
        options: Options of the format, such as ``images=...`` of ``coco``.
    """
    from mm_numeric.importers.prepare import prepare as convert
    from mm_numeric.importers.prepare import record_of

    kind = choose(name, IMPORTERS, "format", "prepare")
    _check_names(options, kind, "option", f"prepare, format {name}")
    importer = kind(**options)
    paths = [Path(path) for path in ([inputs] if isinstance(inputs, str | Path) else inputs)]
    flags: dict[str, Any] = {"clip": clip, "strict": strict, "force": force}
    if to is not None:
        to.check(Path(out), force=force)
    prepared = convert(name, importer, paths, Path(out), **flags)
    if to is None or not prepared.record["counts"].get("rows"):
        return prepared
    try:
        return replace(prepared, usage=to.write(prepared.out, prepared.record["task"]))
    except BaseException:
        # Without the record, a corrected command replaces the rows even without --force.
        record_of(prepared.out).unlink()
        raise


def report(
    folder: str | Path, formats: Sequence[str] = ("html", "md"), *, trust_remote_code: bool = False
) -> tuple[Path, ...]:
    """Write the report of a comparison or of a run, and return the paths of the written files.

    Args:
        folder: Output folder of ``compare`` or ``train``. The report is saved there.
        formats: Any of ``html``, ``md``, ``latex`` and ``csv``.
        trust_remote_code: Import the task if the folder names it by an import path, such as
            ``my_tasks:Thermometer``. Otherwise the sections of that task are left out.
    """
    from mm_numeric.evaluation.report.report import write_report

    return write_report(Path(folder), formats, trust_remote_code=trust_remote_code)


def _check_names(given: Mapping[str, Any], kind: Any, what: str, where: str) -> None:
    """Raise ValueError if ``given`` has an unknown name, or lacks a required field of ``kind``."""
    known = {field.name: field for field in fields(kind)}
    for name in given:
        if name not in known:
            raise unknown(name, known, what, where)
    for name, field in known.items():
        if name not in given and field.default is field.default_factory is MISSING:
            raise ValueError(f"{where}: the {what} {name!r} is missing.")
