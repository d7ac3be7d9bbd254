"""Generate answers in batches, and append them to predictions.jsonl.

predictions.jsonl has one object per sample:
    id       id of the sample
    image    path of the image, or null
    group    name of the images if `image` cannot name them: several images, or images in `datasets`
    task     name of the task, which `score` needs to parse the text
    task_options    options of the task that change how text is parsed, if there are any
    buckets  groups that the sample belongs to, such as its category, for metrics per group
    prompt   the prompt
    text     the generated text; for a list that `predict` shortened, the shortened text
    generated    only for a list that `predict` shortened: the generated text
    ended_by     only for a list that `predict` shortened: the setting that ended it, or null
    parsed   the parsed answer, or null; coordinates in pixels of the original image
    scores   mean token probability of each object of a list; left out if a server returns no
             probabilities
    truncated    only for lists: true if the token limit ended the text
    reason   reason of the parse failure, or null
    target   the correct answer, or null if the data has none
    frame    image size and coordinate format that the model used; null without an image
    rows_due    number of samples in the data, including samples after ``--limit``: `score` compares
             it with the number of answers
``mm_numeric.inference.decode`` describes the fields that other decoding rules add.
"""

import json
import math
import os
from collections.abc import Generator, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteriaList

from mm_numeric.answers import Example, Instances, Unreadable
from mm_numeric.config.compare import Resources
from mm_numeric.config.data import Sources
from mm_numeric.config.decoding import GREEDY, is_greedy_alone
from mm_numeric.config.reader import read_config
from mm_numeric.config.schema import TINY, Config
from mm_numeric.data.collator import prompt_batch
from mm_numeric.data.examples import examples_to_answer
from mm_numeric.data.lengths import check_questions
from mm_numeric.distributed.ranks import EveryRankError, Ranks, num_ranks
from mm_numeric.distributed.ray import map_tasks, parallel_tasks
from mm_numeric.families.family import Family
from mm_numeric.inference.calibrate import Calibration, check_settings, read_calibration
from mm_numeric.inference.candidates import PLAIN_SETTINGS, InvalidLogitsError, unused_settings
from mm_numeric.inference.constrain import Constrainer, Constraint
from mm_numeric.inference.decode import Explorer, Generated, averaged, check_rules, decode
from mm_numeric.inference.endpoint import Endpoint, endpoint_answers
from mm_numeric.inference.list_limits import ListLimits, StopLists
from mm_numeric.inference.predictions_file import (
    answer_order,
    answer_sections,
    claim_predictions,
    copy_evaluated,
    digest_of,
    file_of_rank,
    files_of,
    made_by,
    made_with,
    merge_all,
    merge_ranks,
    open_batches,
)
from mm_numeric.inference.progress import AnswerProgress, ProgressFile
from mm_numeric.io.atomic_files import append_to, locked
from mm_numeric.io.log import logger
from mm_numeric.models.loading import (
    device_type,
    load_family,
    load_model,
    quiet_unless_terminal,
    share_weights,
)
from mm_numeric.models.precision import Precision
from mm_numeric.runs.folder import EVALUATION, FINISHED, MODEL, PREDICTIONS, PROGRESS, read_run


def predict(
    run: Path | Sequence[Path],
    source: Sources | None,
    out: Path,
    *,
    limit: int | None = None,
    trust_remote_code: bool = False,
    rules: Sequence[str] = (),
    endpoint: Endpoint | None = None,
    on_ray: Resources | None = None,
    overrides: Sequence[str] = (),
    calibrates: bool = False,
    reuse: bool = False,
    **settings: Any,
) -> int:
    """Generate an answer to each sample that has no answer in the file ``out`` yet.

    ``mm_numeric.predict`` describes most arguments. ``source`` are the samples to answer; if it is
    None, the test samples are answered. ``rules``, such as ``("greedy", "median")``, all choose
    from the same explored answers. The answers of the first rule are written to ``out``, and those
    of each other rule to a file next to it, such as predictions.median.jsonl. If ``rules`` is
    empty, ``predict.decode`` of the config is used. ``calibrates`` writes answers to which a
    calibration will be fitted: without calibration, and with their supports. Otherwise, if the run
    has a calibration, it is applied; this does not hold for an ensemble or a server. ``reuse``
    copies the answers of the last evaluation during training that would be generated again.

    An existing file must have the same run, samples and settings, and no other process may write
    to it. If a launcher such as torchrun started several ranks, they share the batches, and all
    ranks must see the folder of the file. The file is then the same, byte for byte, as from one
    rank.

    Returns the number of new answers.
    """
    quiet_unless_terminal()
    if on_ray and num_ranks() > 1:
        raise EveryRankError(
            "--engine ray starts tasks of its own; run predict without a launcher such as torchrun."
        )
    ranks = Ranks.of_launcher()

    runs = [run] if isinstance(run, Path) else run
    model, examples = ranks.rank_0_first(
        lambda: _models_and_examples(runs, source, endpoint, trust_remote_code, overrides, settings)
    )
    config = model.config
    rules = rules or (config.predict.rule,)
    _check_ensemble(model, rules)
    made = {rule: made_with(config.predict, rule, rules) for rule in rules}
    model = with_calibrations(model, runs[0], made, endpoint, calibrates=calibrates)
    files = files_of(out, rules)
    check_rules(config.predict, rules, config.task, examples)
    is_shared = on_ray is not None or ranks.count > 1
    with ExitStack() as stack:
        claim = partial(_claim, files, model, examples, made, endpoint, stack, reuse=reuse)
        done = ranks.on_rank_0(lambda: claim(is_shared=is_shared))
        asked, size = _asked(examples, limit, endpoint), config.predict.batch_size
        todo = [e.id for e in asked if any(e.id not in ids for ids in done.values())]
        batches = open_batches(asked, 1 if endpoint else size, set(todo))
        if on_ray and batches:
            _answer_on_ray(batches, model, files, done, on_ray)
            batches = []
        own = {rule: file_of_rank(file, ranks.rank) for rule, file in files.items()}
        if not config.predict.tensor_parallel or endpoint is not None:
            batches = batches[ranks.rank :: ranks.count]
        elif ranks.rank > 0:
            own = {}  # all ranks compute the same answers
        ranks.gather(lambda: _append_answers(model, batches, own, done, ranks.count, endpoint))
        ranks.on_rank_0(lambda: merge_all(files.values(), examples, todo))
    return len(todo)


def _asked(examples: list[Example], limit: int | None, endpoint: Endpoint | None) -> list[Example]:
    """Return ``limit`` examples, spread over the file, in the order in which they are answered."""
    asked = answer_order(examples)[:limit]
    if endpoint is None:
        return asked
    # A server answers each row alone, and may cache the image of rows that follow each other.
    chosen = {example.id for example in asked}
    return [example for example in examples if example.id in chosen]


def _answer_on_ray(
    batches: Sequence[Any],
    model: "_Model",
    files: Mapping[str, Path],
    done: Mapping[str, Set[str]],
    on_ray: Resources,
) -> None:
    tasks = min(parallel_tasks(on_ray), len(batches))
    shares = [(i + 1, batches[i::tasks]) for i in range(tasks)]
    map_tasks(_append_share, shares, (model, files, done, on_ray.cpus), on_ray)


def _claim(
    files: Mapping[str, Path],
    model: "_Model",
    examples: Sequence[Example],
    made: Mapping[str, Mapping[str, Any]],
    endpoint: Endpoint | None,
    stack: ExitStack,
    *,
    reuse: bool,
    is_shared: bool,
) -> dict[str, set[str]]:
    """Lock the file of each rule until ``stack`` ends; return the ids of the answers in each file.

    With ``reuse``, a file without answers gets those of the run's last evaluation, if they are the
    same. ``is_shared`` is True if several ranks or Ray tasks write their own files next to these.
    """
    for file in files.values():
        stack.enter_context(locked(file, "file"))
    engine = model.record() if endpoint is None else endpoint.record()
    found = {}
    for rule, file in files.items():
        record = {**made[rule], **engine, **model.confidence_record(rule)}
        found[rule] = claim_predictions(file, model.made_by, examples, record)
        if 0 < len(found[rule]) < len(examples):
            kept = len(found[rule]), len(examples)
            logger.info("%s: %d of %d answers are kept", file, *kept)
        if reuse and not found[rule]:
            evaluated = Path(model.source).parent / EVALUATION / PREDICTIONS
            ordered = answer_order(examples)
            same = {**made_by(model.made_by, ordered, record), **answer_sections(model.config)}
            found[rule] = copy_evaluated(evaluated, file, same, ordered)
        if is_shared:  # create the file: if it is missing, a restart deletes the other ranks' files
            append_to(file).close()
    return found


class _Model(NamedTuple):
    config: Config
    source: str
    """Folder or hub name of the weights; for a server, of the tokenizer and image processor."""

    made_by: bytes
    """Identifier of the model; its digest is stored with the predictions."""

    precision: Precision | None
    """Precision that the model was trained in; None for a server."""

    rows_due: int = 0
    """Number of samples in the data."""

    others: tuple["_Model", ...] = ()
    """The other models of an ensemble."""

    calibrations: Mapping[str, Calibration] = MappingProxyType({})
    """The calibration of each decoding rule that has one."""

    calibrates: bool = False
    """True to write the supports of the answers, from which a calibration is fitted."""

    def confidence_record(self, rule: str) -> dict[str, Any]:
        """Return the calibration that confidences depend on, to store it with the predictions."""
        if self.calibrates:
            return {"calibration": "to be fitted"}
        own = self.calibrations.get(rule)
        return {} if own is None else {"calibration": own.record()}

    def record(self) -> dict[str, Any]:
        """Return the precision of the models, to store it with the predictions."""
        assert self.precision is not None
        others = [other.record()["precision"] for other in self.others]
        return {"precision": asdict(self.precision), **({"others": others} if others else {})}


def _models_and_examples(
    runs: Sequence[Path],
    source: Sources | None,
    endpoint: Endpoint | None,
    trust_remote_code: bool,
    overrides: Sequence[str],
    settings: Mapping[str, Any],
) -> tuple[_Model, list[Example]]:
    """Read the run, or the ensemble of several runs, and the examples that ``predict`` answers."""
    if len({folder.resolve() for folder in runs}) < len(runs):
        raise ValueError("--model: a run is named twice; an ensemble has each run once.")
    model = read_model(runs[0], endpoint, trust_remote_code, overrides)
    config = replace(model.config, predict=replace(model.config.predict, **settings))
    examples = examples_to_answer(config, source)
    model = model._replace(config=config, rows_due=len(examples))
    for folder in runs[1:]:
        other = read_model(folder, endpoint, trust_remote_code, overrides)
        model = _with_other(model, other, examples, source, folder)
    return model, examples


def with_calibrations(
    model: _Model,
    run: Path,
    made: Mapping[str, Mapping[str, Any]],
    endpoint: Endpoint | None,
    *,
    calibrates: bool,
) -> _Model:
    """Return the model with the calibrations of its run, unless a calibration will be fitted.

    A calibration is not applied to a server or an ensemble, whose distributions differ from those
    of the run's weights. ``made`` has the settings of each rule.
    """
    found = {rule: own for rule in made if (own := read_calibration(run, rule)) is not None}
    if calibrates or not found:
        return model._replace(calibrates=calibrates)
    if endpoint is not None or model.others:
        logger.warning(
            "%s: its calibration is not applied, as it was fitted to the answers of this run.", run
        )
        return model
    for rule, own in found.items():
        check_settings(own, {**made[rule], "run": digest_of(model.made_by)}, run)
    return model._replace(calibrations=found)


def _check_ensemble(model: _Model, rules: Sequence[str]) -> None:
    if model.others and GREEDY in rules:
        raise ValueError(
            "predict.decode: greedy answers of several models cannot be averaged; set another "
            "rule, such as --decode median, or name one model."
        )


def _with_other(
    model: _Model, other: _Model, examples: Sequence[Example], source: Sources | None, folder: Path
) -> _Model:
    """Add a model to an ensemble; raise ValueError if its task or its questions differ."""
    config = replace(other.config, predict=model.config.predict)
    asked = [(e.id, e.prompt, e.images) for e in examples]
    others = [(e.id, e.prompt, e.images) for e in examples_to_answer(config, source)]
    one, two = model.config.task, config.task
    read_alike = all(one.options()[name] == two.options()[name] for name in one.reads_by)
    if type(one) is not type(two) or not read_alike or asked != others:
        raise ValueError(
            f"{folder}: the run has another task or other test rows than the first one of the "
            "ensemble; name runs of one task, and the rows with --data."
        )
    made_by = model.made_by + b"\n" + other.made_by
    return model._replace(made_by=made_by, others=(*model.others, other._replace(config=config)))


def read_model(
    run: Path, endpoint: Endpoint | None, trust_remote_code: bool, overrides: Sequence[str] = ()
) -> _Model:
    """Read the model of a run. With ``endpoint``, ``run`` may also be a config file."""
    if endpoint is None and run.is_file():
        raise ValueError(
            f"{run} contains no run; use the output_dir of `mm-numeric train`, or add --endpoint "
            "for a model on a server."
        )
    if endpoint is None or run.is_dir():
        config = read_run(run, trust_remote_code=trust_remote_code, overrides=overrides)
        precision = Precision.of_run(run) if endpoint is None else None
        if precision is not None:
            config = precision.of_weights(config)
        return _Model(config, str(run / MODEL), (run / FINISHED).read_bytes(), precision)
    config = read_config(run, overrides)
    if config.model.name == TINY:
        raise ValueError(
            f"{run}, model.name: {TINY} is a model that `train` creates, so no server has it; name "
            "the folder of a finished run, or set model.name to the checkpoint that the server "
            "loaded."
        )
    sections = config.to_dict()
    made_by = json.dumps([sections["model"], sections["task"]]).encode()
    return _Model(config, config.model.name, made_by, None)


def _append_share(share: tuple[int, list[list[Example]]], common: Any) -> None:
    """Answer the batches of one Ray task, and append the answers to files of this task.

    If the task was started before on a node that was lost, its complete answers are kept.
    """
    (number, batches), (model, files, done, cpus) = share, common
    torch.set_num_threads(cpus)
    own = {rule: file_of_rank(file, number) for rule, file in files.items()}
    done = {rule: ids | merge_ranks(own[rule], ()) for rule, ids in done.items()}
    batches = [b for b in batches if any(e.id not in ids for e in b for ids in done.values())]
    _append_answers(model, batches, own, done)


def _append_answers(
    model: _Model,
    batches: list[list[Example]],
    files: Mapping[str, Path],
    done: Mapping[str, Set[str]],
    ranks: int = 1,
    endpoint: Endpoint | None = None,
) -> None:
    """Answer the samples in ``batches`` with a model, and append the answers to the files.

    ``files`` has the file of each rule, and ``done`` the ids of the samples that were already
    answered under each rule. ``ranks`` is the number of ranks.
    """
    if not batches:
        return
    config, rows = model.config, list(chain(*batches))
    family = load_family(config, model.source)
    check_questions(family, rows, config.predict.new_tokens)
    explore = None if is_greedy_alone(done) else Explorer(config.predict, family, config.task)
    run = Path(model.source).parent
    # Of several ranks or Ray tasks (their files are called p.jsonl.rank1) none knows all progress.
    is_alone = ranks == 1 and all(f.parent == run and f.suffix == ".jsonl" for f in files.values())
    written = ProgressFile(run / PROGRESS if is_alone else None)
    shown = AnswerProgress("answering", len(rows), config.predict.new_tokens, written)
    if endpoint is None:
        inside = None if model.others else shown  # in an ensemble, each model answers each batch
        answers = LoadedModel(model, family, ranks).answers(batches, explore, inside)
        if model.others:
            answers = _answers_of_ensemble(model, answers, batches, ranks)
    else:
        answers = endpoint_answers(endpoint, config, family, rows, explore)
    with closing(answers), shown, ExitStack() as stack:
        stack.callback(written.delete)
        opened = {r: stack.enter_context(append_to(f)) for r, f in files.items()}
        for number, (example, answer) in enumerate(zip(rows, answers, strict=True), start=1):
            for rule, file in opened.items():
                if example.id not in done[rule]:
                    line = prediction(
                        config,
                        family,
                        example,
                        answer,
                        rule,
                        calibration=model.calibrations.get(rule),
                        with_support=model.calibrates,
                    )
                    line["rows_due"] = model.rows_due
                    file.write(json.dumps(line) + "\n")  # ASCII, so that each line is valid UTF-8
                    file.flush()
                if number % config.predict.batch_size == 0:
                    os.fsync(file.fileno())
            if endpoint is not None or model.others:
                shown.advance()


class LoadedModel:
    """A model in memory. With tensor parallelism, its weights are shared among ``ranks`` ranks."""

    def __init__(self, source: _Model, family: Family, ranks: int = 1) -> None:
        config, self.source, self.family = source.config, source, family
        if config.predict.tensor_parallel:
            share_weights(family, source.source, config.model, ranks)
        self.model = load_model(config, family, source.source)
        self.model.to(device_type()).eval()
        if unused := unused_settings(self.model.generation_config):
            logger.info(
                "%s: generation_config.json sets %s, which are not used: answers are those of the "
                "model's own distribution.",
                source.source,
                ", ".join(unused),
            )
        self.constrainer = None
        if config.predict.constrain:
            self.constrainer = Constrainer(config.task, family, self.model.device)

    def answers(
        self,
        batches: Sequence[Sequence[Example]],
        explore: Explorer | None,
        shown: AnswerProgress | None = None,
    ) -> Generator[Generated]:
        """Generate an answer to each sample of the batches; show the progress in ``shown``."""
        settings = self.source.config.predict
        for batch in batches:
            answers = generate(
                self.model,
                self.family,
                batch,
                settings.new_tokens,
                explore=explore,
                constrainer=self.constrainer,
                limits=ListLimits(self.source.config.task, settings),
                precision=self.source.precision,
            )
            if shown is not None:
                with shown.batch(self.model, len(batch)):
                    answers = iter(list(answers))
            yield from answers


def _answers_of_ensemble(
    model: _Model, first: Iterator[Generated], batches: Sequence[Sequence[Example]], ranks: int
) -> Generator[Generated]:
    """Yield the answers of an ensemble; ``first`` are the answers of its first model."""
    answers, rows = [first], list(chain(*batches))
    for other in model.others:
        family = load_family(other.config, other.source)
        check_questions(family, rows, other.config.predict.new_tokens)
        explore = Explorer(other.config.predict, family, other.config.task)
        answers.append(LoadedModel(other, family, ranks).answers(batches, explore))
    for example, *own in zip(rows, *answers, strict=True):
        yield averaged(own, example.where)


class _GreedyProbability(LogitsProcessor):
    """Logits processor that stores the probability of the most likely token at each step.

    With a constraint, it uses the most likely allowed token. But the probability is normalised over
    all tokens, so that a model that has not learnt the format is not confident.
    """

    def __init__(self, constraint: Constraint | None) -> None:
        self.constraint = constraint
        self.steps: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        allowed = self.constraint(input_ids, scores) if self.constraint else scores
        self.steps.append((allowed.amax(-1) - scores.logsumexp(-1)).float().exp())
        return allowed


@torch.no_grad()  # not inference_mode: tensors that the model caches could not be trained with
def generate(
    model: Any,
    family: Family,
    examples: Sequence[Example],
    max_new_tokens: int,
    *,
    add_dummy_image_row: bool = False,
    explore: Explorer | None = None,
    constrainer: Constrainer | None = None,
    limits: ListLimits | None = None,
    precision: Precision | None = None,
) -> Iterator[Generated]:
    """Generate an answer to each example with greedy decoding, as one batch.

    ``explore`` also finds other likely answers, for other decoding rules. ``constrainer`` limits
    the answers to the grammar of a task. With ``limits``, generation of a list ends as soon as the
    limits would remove every later object. The model computes in ``precision``; if it is None,
    without autocast.

    ``add_dummy_image_row`` adds a prompt with a dummy image to a batch without images. It is needed
    with ZeRO-3, where all ranks must run the vision tower.
    """
    inputs, frames = prompt_batch(family, examples, add_dummy_image_row=add_dummy_image_row)
    inputs = {key: value.to(model.device) for key, value in inputs.items()}
    constraint = None
    if constrainer is not None:
        constraint = constrainer.batch(frames, len(inputs["input_ids"]), max_new_tokens)
    # This context ends before each yield, because the caller must not compute under autocast.
    computing = nullcontext() if precision is None else precision.computing(model.device)
    if explore is not None:
        exploration = explore(examples, constraint)
        try:
            with computing:
                found = generate_tokens(
                    model, family, inputs, max_new_tokens, custom_generate=exploration
                )
        except InvalidLogitsError as error:
            raise ValueError(f"{_where(examples, error.row)}: {error}") from error
        for each, frame in zip(found, frames, strict=False):  # without the dummy image row
            yield explore.generated(each, frame)
        return
    probability = _GreedyProbability(constraint)
    prompt_length = 1 if family.encoder_decoder else inputs["input_ids"].shape[1]
    stops = []
    if limits is not None and limits.settings.limits_lists:
        stops = [StopLists(limits, family, frames, constraint, prompt_length)]
    with computing:
        written = generate_tokens(
            model,
            family,
            inputs,
            max_new_tokens,
            logits_processor=LogitsProcessorList([probability]),
            stopping_criteria=StoppingCriteriaList(stops),
        )
    answers = written[:, prompt_length:].tolist()
    probs = torch.stack(probability.steps, dim=1).tolist()
    # strict=False drops the dummy image row, which is last.
    for row, (ids, own, frame) in enumerate(zip(answers, probs, frames, strict=False)):
        if any(map(math.isnan, own[: len(family.before_end(ids)) + 1])):
            raise ValueError(f"{_where(examples, row)}: {InvalidLogitsError(row)}")
        yield Generated(family.text(ids), frame, ids, own)


def _where(examples: Sequence[Example], row: int) -> str:
    return examples[row].where if row < len(examples) else "the dummy image row"


def generate_tokens(
    model: Any, family: Family, inputs: dict[str, Any], max_new_tokens: int, **options: Any
) -> Any:
    """Call ``model.generate`` with the prompts ``inputs`` for greedy decoding.

    All generation settings of the checkpoint are overridden (``PLAIN_SETTINGS``): a repetition
    penalty, for example, would hinder answers such as 11:11.
    """
    start = {"decoder_start_token_id": family.decoder_start_id} if family.encoder_decoder else {}
    return model.generate(
        **inputs,
        **start,
        max_new_tokens=max_new_tokens,
        **PLAIN_SETTINGS,
        eos_token_id=family.stop_ids,
        pad_token_id=family.pad_id,
        **options,
    )


def _question(config: Config, example: Example) -> dict[str, Any]:
    reads_by = {name: config.task.options()[name] for name in config.task.reads_by}
    return {
        "id": example.id,
        "image": None if example.image is None else str(example.image.resolve()),
        **({"group": example.group} if example.group else {}),
        "task": config.task_name,
        **({"task_options": reads_by} if reads_by else {}),
        **({"buckets": dict(example.buckets)} if example.buckets else {}),
        "prompt": example.prompt,
    }


def prediction(
    config: Config,
    family: Family,
    example: Example,
    generated: Generated,
    rule: str = GREEDY,
    *,
    calibration: Calibration | None = None,
    with_support: bool = False,
) -> dict[str, Any]:
    """Parse the answer to an example, and return its line of predictions.jsonl as a dictionary.

    If answers were explored, ``rule`` chooses one of them, and ``calibration`` changes its
    confidence. ``with_support`` adds the field ``support``, from which a calibration is fitted.
    """
    frame, candidates, task = generated.frame, generated.candidates, config.task
    text, answer, entries, scores = _greedy_answer(config, family, generated)
    if candidates is not None:
        text, entries, certain, support = decode(
            task,
            frame,
            text,
            candidates,
            rule,
            config.predict.risk,
            samples=generated.samples,
            is_partial=generated.is_partial,
            calibration=calibration,
        )
        if with_support:
            entries["decode"]["support"] = support
        answer = answer if text == generated.text else task.read(text, frame)
        if certain is None and isinstance(answer, Instances):  # points, or no complete answer
            certain = [0.0] * len(answer.items)
        if certain is not None:
            tokens = {"token_scores": scores["scores"]} if scores and rule == GREEDY else {}
            scores = {"scores": [round(value, 6) for value in certain], **tokens}
    unreadable = isinstance(answer, Unreadable)
    return {
        **_question(config, example),
        "text": text,
        **entries,
        "parsed": None if unreadable else task.record(answer),
        **scores,
        "reason": answer.reason if unreadable else None,
        **_truncated(config, family, example, generated, text, entries),
        "target": None if example.answer is None else task.record(example.answer),
        "frame": None if frame is None else frame.to_dict(),
    }


def _greedy_answer(
    config: Config, family: Family, generated: Generated
) -> tuple[str, Any, dict[str, Any], dict[str, Any]]:
    """Return the greedy text, its answer, the fields of a shortened list, and scores of objects."""
    text, frame, task = generated.text, generated.frame, config.task
    answer = task.read(text, frame)
    spans = answer.spans if isinstance(answer, Instances) else ()
    scores: dict[str, Any] = {}
    if spans and generated.probabilities:
        scores["scores"] = [round(generated.mean_probability(family, s), 6) for s in spans]
    short = ListLimits(task, config.predict).shorten(text, answer, frame)
    if not short:
        return text, answer, {}, scores
    scores = {name: [own[i] for i in short.kept] for name, own in scores.items()}
    return short[0], short[1], {"generated": text, "ended_by": short.ended_by}, scores


def _truncated(
    config: Config,
    family: Family,
    example: Example,
    generated: Generated,
    text: str,
    entries: Mapping[str, Any],
) -> dict[str, bool]:
    """Return the field ``truncated`` for a list: True if the token limit ended its text."""
    if not isinstance(example.answer, Instances):
        return {}
    found = generated.is_truncated
    if generated.ids:
        found = len(family.before_end(generated.ids)) == config.predict.max_new_tokens
    is_whole = entries.get("generated", text) == generated.text and not entries.get("ended_by")
    return {"truncated": found and is_whole}
