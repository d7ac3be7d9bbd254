"""Check the data of a config before training.

Every row is read, formatted and tokenised as the collator does it; nothing is trained and no
weights are loaded. A fault would stop the training or silently degrade it; a note is for
information. The ceiling is the score of the right answers after they are written as text and parsed
again: with this coordinate format and image size no model can score higher.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from mm_numeric.answers import Box, Example, Instance, Instances, Polygon, Unreadable
from mm_numeric.config.data import Sources, named
from mm_numeric.config.schema import Config
from mm_numeric.data.collator import TrainingCollator, make_collator
from mm_numeric.data.examples import examples_and_errors
from mm_numeric.data.framing import check_declared_size, compute_frame, load_framed_image
from mm_numeric.data.images import image_size, open_image
from mm_numeric.data.lengths import TooLongError, count_image_tokens
from mm_numeric.evaluation.check_data.findings import Checkup, DataReport, Trained, kind_of
from mm_numeric.evaluation.score import scorer_of
from mm_numeric.families.family import Family, Tokens
from mm_numeric.geometry.row_shapes import clipped
from mm_numeric.log import progress
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
    """Check the training rows and the test rows of a config.

    Args:
        config: The config.
        limit: Number of examples to check in each source; None for all.
        images: Number of images to decode in each source; after that, only headers are read.
        size_px: Width and height of missing images whose rows do not have them.

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
    _fit_baseline(config, family, limit)
    report = DataReport(config, collator, positions, [], [])
    sources: dict[str, Sources] = {"train": config.data.train, "test": config.data.test}
    for name, data in sources.items():
        cache = Path(config.data.cache)
        found = examples_and_errors(config.task, data, cache, training=name == "train")
        checkup = Checkup(name, named(data))
        # The length limit applies to training rows only.
        checked_with = collator if name == "train" else replace(collator, length_limit=None)
        report.checkups.append(checkup)
        rows = progress(islice(found, limit), desc=f"checking {name} data", unit="question")
        for count, (example, error) in enumerate(rows):
            if example is not None and example.size_px is None and error is not None:
                example = replace(example, size_px=size_px)
            _check_example(checkup, checked_with, example, error, decode=count < images)
        _check_batches(checkup, checked_with, settings)
        _check_lengths(report, checkup)
        _compute_ceiling(config, checkup)
    report.notes += _notes(report)
    return report


def _fit_baseline(config: Config, family: Family, limit: int | None) -> None:
    """Fit the statistics of a baseline to the usable training rows."""
    if config.model.baseline is None:
        return
    found = examples_and_errors(
        config.task, config.data.train, Path(config.data.cache), training=True
    )
    family.fit(config.task, [e for e, error in islice(found, limit) if e and error is None])


def _check_example(
    checkup: Checkup,
    collator: TrainingCollator,
    example: Example | None,
    error: ValueError | None,
    *,
    decode: bool,
) -> None:
    """Encode one example as for training, and record its faults.

    Args:
        checkup: Receives the encoded example or the fault.
        collator: The collator of the training.
        example: None if its row is invalid.
        error: Why the row or the image cannot be used.
        decode: Whether to decode the image, or to read only its header.
    """
    checkup.questions += 1
    if error is not None and example is not None:
        checkup.fault(
            "the image is missing",
            str(error),
            "Set `images` of the data source to the folder of the images. Without images, "
            "coordinates are checked in rows that have width and height, or with --size "
            "WIDTHxHEIGHT in all rows.",
        )
        if example.size_px is None:
            return
    elif error is not None or example is None:
        checkup.fault(kind_of(str(error)), str(error))
        return
    try:
        has_image = error is None and example.image is not None
        size = _size(example, decode=decode) if has_image else example.size_px
        trained, answer, numbers = _encoded(collator, example, size, has_image)
    except ValueError as wrong:
        if (
            isinstance(wrong, TooLongError)
            and collator.length_limit
            and collator.length_limit.too_long == "drop"
        ):
            checkup.too_long += 1
        else:
            checkup.fault(kind_of(str(wrong)), str(wrong))
        return
    checkup.trained.append(trained)
    text = trained.written.text
    _check_answer(checkup, trained, text, answer)
    _count_numbers(checkup, collator, text, answer, numbers)


def _size(example: Example, *, decode: bool) -> tuple[int, int]:
    """Return width and height of the upright image, and compare them with those in the row."""
    assert example.image is not None
    try:
        size = open_image(example).size if decode else image_size(example.image)
    except ValueError:
        size = open_image(example).size  # its error message names the row
    check_declared_size(example, size)
    return size


def _encoded(
    collator: TrainingCollator,
    example: Example,
    size: tuple[int, int] | None,
    has_image: bool,
) -> tuple[Trained, Tokens, list[TokenNumber]]:
    """Encode one example as the collator does; return it with the tokens and numbers of its answer.

    Args:
        collator: The collator of the training.
        example: The example.
        size: Width and height of its image, if it has one.
        has_image: Whether the image file is available.
    """
    family = collator.family
    frame = None if size is None else compute_frame(family, example, size)
    if collator.length_limit is not None:
        frame = collator.length_limit.frame(example, frame)
    image_tokens = count_image_tokens(family, frame)
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


def _check_batches(
    checkup: Checkup, collator: TrainingCollator, settings: Any, count: int = 16
) -> None:
    """Collate some examples, and compare image features and labels with the checkup."""
    family = collator.family
    complete = [t for t in checkup.trained if t.has_image or t.example.image is None]
    for trained in complete[:: max(len(complete) // count, 1)][:count]:
        example, where = trained.example, trained.example.where
        try:
            batch = collator([example])
        except ValueError as error:
            checkup.fault(kind_of(str(error)), str(error))
            continue
        if trained.has_image:
            seen, _ = load_framed_image(family, example, length_limit=collator.length_limit)
            assert seen is not None
            features = family.num_image_features(family.images([seen]), settings)
            if features != trained.image_tokens:
                checkup.fault(
                    "image tokens and features differ",
                    f"{where}: {trained.image_tokens} placeholders for {features} features.",
                    "The image processor of the checkpoint does not match model.family.",
                )
        start = 0 if family.encoder_decoder else trained.question_tokens - 1
        supervised = batch["supervised"][0].nonzero().squeeze(1).tolist()
        answer = trained.answer.ids
        expected = list(range(start, start + len(answer)))
        if supervised != expected or batch["labels"].tolist() != answer:
            checkup.fault(
                "more in the loss than the answer",
                f"{where}: the labels are {family.tokenizer.decode(batch['labels'])!r:.80}.",
            )


def _check_lengths(report: DataReport, checkup: Checkup) -> None:
    """Find sequences longer than the model, and answers longer than ``predict.max_new_tokens``."""
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
                "Use smaller images (model.image_size), or remove the rows; nothing is truncated.",
            )
        if checkup.name == "test" and written > length:
            checkup.fault(
                "longer than predict.max_new_tokens",
                f"{where}: the answer and its end are {written} tokens; prediction stops at "
                f"{length}.",
                f"Set predict.max_new_tokens to at least {longest}.",
            )


def _check_answer(checkup: Checkup, trained: Trained, text: str, answer: Tokens) -> None:
    """Check that the tokens of an answer decode to its text, and that the text parses back."""
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
            "The tokenizer changes its spaces or characters; change the text of the answer.",
        )
    elif isinstance(trained.read_back, Unreadable):
        checkup.fault(
            "answers that cannot be parsed",
            f"{where}: {text!r:.60} cannot be parsed: {trained.read_back.reason}.",
        )
    elif (again := task.format(_clipped_answer(trained), trained.frame).text) != text:
        checkup.fault(
            "answers that are parsed as other answers",
            f"{where}: {text!r:.60} is parsed as {again!r:.60}.",
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
    """Count the tokens and digits of an answer that notes are about."""
    checkup.tokens.update(answer.ids[:-1])
    # By character, because T5 gives the token of a space the offset of the digit after it.
    marked = {
        character
        for number in numbers
        for position in number.positions
        for character in range(*answer.offsets[position])
    }
    checkup.digits_left += sum(c.isdigit() for i, c in enumerate(text) if i not in marked)
    tokens = collator.vocabulary.tokens
    checkup.wide_tokens += sum(len(tokens[j].digits) > 1 for n in numbers for j in n.targets)


def _clipped_answer(trained: Trained) -> Any:
    """Return the parsed answer with its shapes clipped to the image.

    In an image padded to a square, rounding can move a coordinate by half a step from the edge of
    the image into the padding. This is not a fault, but such a shape cannot be formatted again.
    """
    answer, frame = trained.read_back, trained.frame
    if frame is None:
        return answer
    size = frame.width_px, frame.height_px
    if isinstance(answer, Instances):
        items = (replace(item, shape=clipped(item.shape, *size)) for item in answer.items)
        return Instances(tuple(items))
    return clipped(answer, *size) if isinstance(answer, Box | Polygon) else answer


def _compute_ceiling(config: Config, checkup: Checkup) -> None:
    """Score the parsed answers against the right ones."""
    pairs = [(t.read_back, t.example.answer) for t in checkup.trained]
    answers: list[Any] = [answer for answer, _ in pairs]
    targets = [target for _, target in pairs]
    if not targets:
        return
    checkup.scorer = scorer_of(config.task, config.task_name, targets[0], config.title)
    columns = checkup.scorer.judge(answers, targets)
    checkup.ceiling = {m.name: float(m.value(columns)) for m in checkup.scorer.metrics}


def _notes(report: DataReport) -> Iterator[str]:
    """Yield the notes about all sources."""
    checkups, tokenizer = report.checkups, report.family.tokenizer
    tokens = {token for checkup in checkups for token in checkup.tokens}
    special = sorted(tokens.intersection(tokenizer.all_special_ids))
    if special:
        names = ", ".join(tokenizer.convert_ids_to_tokens(special)[:6])
        yield (
            f"Answers contain special tokens ({names}): this library keeps them, and other engines "
            "must decode with skip_special_tokens=False."
        )
    if dropped := sum(checkup.too_long for checkup in checkups):
        most = report.config.data.max_tokens
        yield f"{dropped} rows have more than {most} tokens, and are dropped."
    if unmarked := sum(checkup.digits_left for checkup in checkups):
        yield (
            f"{unmarked} digits of answers are in no marked number: cross-entropy alone trains "
            "them. objective.numbers_from: text includes every number in the tokens."
        )
    if wide := sum(checkup.wide_tokens for checkup in checkups):
        yield (
            f"{wide} number tokens hold more than one digit: digit losses include each of the "
            "digits, but only cross-entropy trains how many digits a token has."
        )
    same_images, same_questions = _shared(checkups)
    if same_images:
        yield f"{same_images} test questions are about an image of the training data."
    if same_questions:
        yield f"{same_questions} test questions are in the training data too."
    if collapsed := sum(_collapsed(t) for checkup in checkups for t in checkup.trained):
        yield (
            f"{collapsed} shapes are narrower than one step of the coordinates, and have no area "
            "after parsing."
        )


def _collapsed(trained: Trained) -> int:
    """Return the number of parsed shapes without width or height."""
    answer = trained.read_back
    items = answer.items if isinstance(answer, Instances) else [answer]
    shapes = [item.shape if isinstance(item, Instance) else item for item in items]
    points = [shape.points for shape in shapes if isinstance(shape, Box | Polygon)]
    return sum(min(len({p[0] for p in ps}), len({p[1] for p in ps})) < 2 for ps in points)


def _shared(checkups: Sequence[Checkup]) -> tuple[int, int]:
    """Count the test questions whose image, or whose text, is in the training data.

    Questions about images are compared by image, questions without an image by text.
    """
    train, test = ([t.example for t in c.trained if t.has_image] for c in checkups)
    images = {example.image for example in train}
    train_texts, test_texts = (
        [t.example.prompt for t in c.trained if t.example.image is None] for c in checkups
    )
    prompts = set(train_texts)
    return sum(e.image in images for e in test), sum(p in prompts for p in test_texts)
