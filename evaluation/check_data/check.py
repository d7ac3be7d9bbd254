"""Look at a config's data as it will be trained on, before a GPU hour is spent.

Every row is read, framed, written and tokenised just as the collator does; nothing is trained and
no weights are loaded. What would stop a training, or quietly spoil it, is a fault; what is worth
knowing is a note. The ceiling is the score of the right answers themselves, written in the frame
and read back: no model can do better in it.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from mm_numeric.answers import Box, Example, Instances, Polygon, Unreadable
from mm_numeric.config.data import Sources, named
from mm_numeric.config.schema import Config
from mm_numeric.data.collator import TrainingCollator, make_collator
from mm_numeric.data.examples import examples_and_errors
from mm_numeric.data.framing import frame_of, framed, refuse_other_size
from mm_numeric.data.images import image_size, open_image
from mm_numeric.data.lengths import TooLongError, image_token_count
from mm_numeric.evaluation.check_data.findings import Checkup, DataReport, Trained, kind_of
from mm_numeric.evaluation.score import scorer_of
from mm_numeric.families.family import Family, Tokens
from mm_numeric.geometry.row_shapes import clipped
from mm_numeric.models.loading import TINY, load_family, quiet_unless_terminal
from mm_numeric.numbers.spans import TokenNumber
from mm_numeric.registry import FAMILIES, choose


def check_data(
    config: Config,
    *,
    limit: int | None = None,
    images: int = 200,
    size_px: tuple[int, int] | None = None,
) -> DataReport:
    """Look at the rows of a config.

    Args:
        config: The whole job.
        limit: Only the first so many questions of each source.
        images: How many images of each source are decoded; of JPEGs behind them the header is
            read.
        size_px: What images that are not there are taken to be, where their rows do not say it.

    Raises:
        ValueError: If the checkpoint's tokenizer or image processor cannot be loaded.
    """
    quiet_unless_terminal()
    with tempfile.TemporaryDirectory() as folder:
        source = config.model.name
        if source == TINY:
            source = f"{folder}/tiny"
            cls = choose(config.model.family, FAMILIES, "family", f"{config.title}, model.family")
            cls.make_tiny(Path(source), seed=0)
        family = load_family(config, source)
        settings = family.load_config(source, config.model)
    positions = getattr(settings.get_text_config(), "max_position_embeddings", None)
    collator = make_collator(config, family)
    _fit(config, family, limit)
    report = DataReport(config, collator, positions, [], [])
    sources: dict[str, Sources] = {"train": config.data.train, "test": config.data.test}
    for name, data in sources.items():
        cache = Path(config.data.cache)
        found = examples_and_errors(config.task, data, cache, training=name == "train")
        checkup = Checkup(name, named(data))
        looked = collator if name == "train" else replace(collator, fit=None)
        report.checkups.append(checkup)
        for count, (example, error) in enumerate(islice(found, limit)):
            if example is not None and example.size_px is None and error is not None:
                example = replace(example, size_px=size_px)
            _look_at(checkup, looked, example, error, decode=count < images)
        _look_at_batches(checkup, looked, settings)
        _look_at_lengths(report, checkup)
        _take_the_ceiling(config, checkup)
    _take_notes(report)
    return report


def _fit(config: Config, family: Family, limit: int | None) -> None:
    """Let a baseline measure the numbers of the rows trained on; those that cannot be used wait."""
    if config.model.baseline is None:
        return
    found = examples_and_errors(
        config.task, config.data.train, Path(config.data.cache), training=True
    )
    family.fit(config.task, [e for e, error in islice(found, limit) if e and error is None])


def _look_at(
    checkup: Checkup,
    collator: TrainingCollator,
    example: Example | None,
    error: ValueError | None,
    *,
    decode: bool,
) -> None:
    """Write one answer as it will be trained on, or say why it cannot be."""
    checkup.questions += 1
    if error is not None and example is not None:
        checkup.fault(
            "the image is missing",
            str(error),
            "Say with images in the data source where images are. Without them places are "
            "checked where rows give width and height, or all with --size WIDTHxHEIGHT.",
        )
        if example.size_px is None:
            return
    elif error is not None or example is None:
        checkup.fault(kind_of(str(error)), str(error))
        return
    try:
        has_image = error is None and example.image is not None
        size = _size(example, decode=decode) if has_image else example.size_px
        trained, answer, numbers = _trained(collator, example, size, has_image)
    except ValueError as wrong:
        if isinstance(wrong, TooLongError) and collator.fit and collator.fit.too_long == "drop":
            checkup.too_long += 1
        else:
            checkup.fault(kind_of(str(wrong)), str(wrong))
        return
    checkup.trained.append(trained)
    text = trained.written.text
    _look_at_answer(checkup, trained, text, answer)
    _count_numbers(checkup, collator, text, answer, numbers)


def _size(example: Example, *, decode: bool) -> tuple[int, int]:
    """Return width and height of an upright image, and say if its row says otherwise."""
    assert example.image is not None
    try:
        size = open_image(example).size if decode else image_size(example.image)
    except ValueError:
        size = open_image(example).size  # says what is wrong, and with which row
    refuse_other_size(example, size)
    return size


def _trained(
    collator: TrainingCollator,
    example: Example,
    size: tuple[int, int] | None,
    has_image: bool,
) -> tuple[Trained, Tokens, list[TokenNumber]]:
    """Write one example as the collator does, and return its answer's tokens and numbers too."""
    family = collator.family
    frame = None if size is None else frame_of(family, example, size)
    if collator.fit is not None:
        frame = collator.fit.frame(example, frame)
    image_tokens = image_token_count(family, frame)
    answer, numbers = collator.answer(example, frame)
    try:
        question = family.question(example.prompt, image_tokens)
    except ValueError as error:
        raise ValueError(f"{example.where}: {error}") from error
    trained = Trained(
        collator=collator,
        example=example,
        size_px=size,
        has_image=has_image,
        frame=frame,
        question_tokens=len(question),
        image_tokens=image_tokens,
        answer_tokens=len(answer.ids),
        number_tokens=sum(len(number.positions) for number in numbers),
        read_back=collator.task.parse(family.text(answer.ids), frame),
    )
    return trained, answer, numbers


def _look_at_batches(
    checkup: Checkup, collator: TrainingCollator, settings: Any, count: int = 16
) -> None:
    """Hold some real batches against what is said here: features, and what is in the loss."""
    family = collator.family
    there = [t for t in checkup.trained if t.has_image or t.example.image is None]
    for trained in there[:: max(len(there) // count, 1)][:count]:
        example, where = trained.example, trained.example.where
        try:
            batch = collator([example])
        except ValueError as error:
            checkup.fault(kind_of(str(error)), str(error))
            continue
        if trained.has_image:
            seen, _ = framed(family, example, fit=collator.fit)
            assert seen is not None
            features = family.num_image_features(family.images([seen]), settings)
            if features != trained.image_tokens:
                checkup.fault(
                    "image tokens and features differ",
                    f"{where}: {trained.image_tokens} placeholders for {features} features.",
                    "The checkpoint's image processor and model.family do not go together.",
                )
        start = 0 if family.encoder_decoder else trained.question_tokens - 1
        supervised = batch["supervised"][0].nonzero().squeeze(1).tolist()
        answer = trained.answer.ids
        rows = list(range(start, start + len(answer)))
        if supervised != rows or batch["labels"].tolist() != answer:
            checkup.fault(
                "more in the loss than the answer",
                f"{where}: the labels are {family.tokenizer.decode(batch['labels'])!r:.80}.",
            )


def _look_at_lengths(report: DataReport, checkup: Checkup) -> None:
    """Find what is longer than the model takes, or than prediction will write."""
    length = report.config.predict.max_new_tokens
    longest = max((t.answer_tokens for t in checkup.trained), default=0)
    for trained in checkup.trained:
        where, written = trained.example.where, trained.answer_tokens
        total = trained.question_tokens + written
        if report.positions is not None and total > report.positions:
            checkup.fault(
                "longer than the model",
                f"{where}: {total} tokens ({trained.image_tokens} of the image), and the model "
                f"has {report.positions} positions.",
                "Show smaller images (model.image_size), or take the rows out; nothing is cut.",
            )
        if checkup.name == "test" and written > length:
            checkup.fault(
                "longer than predict.max_new_tokens",
                f"{where}: the answer and its end are {written} tokens; prediction stops at "
                f"{length}.",
                f"Set predict.max_new_tokens to at least {longest}.",
            )


def _look_at_answer(checkup: Checkup, trained: Trained, text: str, answer: Tokens) -> None:
    """Find whether an answer would end early, or not come back as it was written."""
    family, task, where = trained.collator.family, trained.collator.task, trained.example.where
    *ids, end = answer.ids
    early = [token for token in ids if token in (*family.stop_ids, family.pad_id)]
    if early:
        name = family.tokenizer.convert_ids_to_tokens(early[0])
        checkup.fault(
            "answers that stop early",
            f"{where}: the answer {text!r:.60} holds {name}, which ends generation.",
            "Change the answer's text, or the format of model.coordinates.",
        )
    elif (decoded := family.text(answer.ids)) != text:
        checkup.fault(
            "answers that decode to another text",
            f"{where}: {text!r:.60} is decoded as {decoded!r:.60}.",
            "Its spaces or characters are not the tokenizer's own; change how it is written.",
        )
    elif isinstance(trained.read_back, Unreadable):
        checkup.fault(
            "answers that cannot be read back",
            f"{where}: {text!r:.60} cannot be read back: {trained.read_back.reason}.",
        )
    elif (again := task.format(_inside(trained), trained.frame).text) != text:
        checkup.fault(
            "answers that are read back as others",
            f"{where}: {text!r:.60} is read back as {again!r:.60}.",
        )
    if end not in family.stop_ids and family.ends_answers:
        checkup.fault("answers without an end", f"{where}: the answer has no end token.")


def _count_numbers(
    checkup: Checkup,
    collator: TrainingCollator,
    text: str,
    answer: Tokens,
    numbers: Sequence[TokenNumber],
) -> None:
    """Count what is worth a note in an answer's tokens."""
    checkup.tokens.update(answer.ids[:-1])
    # By character: T5's token of a space is said to stand where the digit behind it does.
    seen = {
        character
        for number in numbers
        for position in number.positions
        for character in range(*answer.offsets[position])
    }
    checkup.digits_left += sum(c.isdigit() for i, c in enumerate(text) if i not in seen)
    tokens = collator.vocabulary.tokens
    checkup.wide_tokens += sum(len(tokens[j].digits) > 1 for n in numbers for j in n.targets)


def _inside(trained: Trained) -> Any:
    """Return what was read back, with its shapes inside the image.

    In a padded square rounding moves the edge of the image into the padding, by up to half a
    step: that is no fault, and could not be written again.
    """
    answer, frame = trained.read_back, trained.frame
    if frame is None:
        return answer
    size = frame.width_px, frame.height_px
    if isinstance(answer, Instances):
        items = (replace(item, shape=clipped(item.shape, *size)) for item in answer.items)
        return Instances(tuple(items))
    return clipped(answer, *size) if isinstance(answer, Box | Polygon) else answer


def _take_the_ceiling(config: Config, checkup: Checkup) -> None:
    """Score the answers as they are read back from the frame."""
    pairs = [(t.read_back, t.example.answer) for t in checkup.trained]
    answers: list[Any] = [answer for answer, _ in pairs]
    targets = [target for _, target in pairs]
    if not targets:
        return
    checkup.scorer = scorer_of(config.task, config.task_name, targets[0], config.title)
    columns = checkup.scorer.judge(answers, targets)
    checkup.ceiling = {m.name: float(m.value(columns)) for m in checkup.scorer.metrics}


def _take_notes(report: DataReport) -> None:
    """Say what is no fault and worth knowing."""
    checkups, tokenizer = report.checkups, report.family.tokenizer
    written = {token for checkup in checkups for token in checkup.tokens}
    special = sorted(written.intersection(tokenizer.all_special_ids))
    if special:
        names = ", ".join(tokenizer.convert_ids_to_tokens(special)[:6])
        report.notes.append(
            f"Answers hold special tokens ({names}): they survive here, and another engine must "
            "decode with skip_special_tokens=False."
        )
    long = sum(checkup.too_long for checkup in checkups)
    if long:
        most = report.config.data.max_tokens
        report.notes.append(f"{long} rows have more than {most} tokens, and are dropped.")
    left = sum(checkup.digits_left for checkup in checkups)
    if left:
        report.notes.append(
            f"{left} digits of answers are in no marked number: cross-entropy alone trains them. "
            "objective.numbers_from: text includes every number in the tokens."
        )
    wide = sum(checkup.wide_tokens for checkup in checkups)
    if wide:
        report.notes.append(
            f"{wide} number tokens hold more than one digit each: digit losses charge each "
            "digit of them, and a wrong width is left to cross-entropy."
        )
    twice, same = _shared(checkups)
    if twice:
        report.notes.append(f"{twice} test questions ask of an image that is trained on, too.")
    if same:
        report.notes.append(f"{same} test questions are trained on, too.")
    tiny = sum(_collapsed(t) for checkup in checkups for t in checkup.trained)
    if tiny:
        report.notes.append(
            f"{tiny} shapes are narrower than a step of the frame, and come back without area."
        )


def _collapsed(trained: Trained) -> int:
    """Return how many shapes of an answer have no width or height once they are read back."""
    answer = trained.read_back
    items = answer.items if isinstance(answer, Instances) else [answer]
    shapes = [getattr(item, "shape", item) for item in items]
    points = [shape.points for shape in shapes if hasattr(shape, "points")]
    return sum(min(len({p[0] for p in ps}), len({p[1] for p in ps})) < 2 for ps in points)


def _shared(checkups: Sequence[Checkup]) -> tuple[int, int]:
    """Return how many test questions are about an image that is trained on, or are trained on."""
    train, test = ([t.example for t in c.trained if t.has_image] for c in checkups)
    shown = {example.image for example in train}
    asked, again = ([t.example for t in c.trained if t.example.image is None] for c in checkups)
    prompts = {example.prompt for example in asked}
    return sum(e.image in shown for e in test), sum(e.prompt in prompts for e in again)
