"""Check the data of a config before training.

Every row is read, formatted and tokenised by the code that also prepares training batches. No
weights are loaded, and nothing is trained.

Problem  an error that would stop the training or silently degrade its result
Note     information that needs no action
Ceiling  the score of the correct answers after they are formatted as text and parsed again: with
         this coordinate format and image size, no model can score higher. A ceiling below 90 % in
         the main metric is a problem
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from mm_numeric.answers import Example, Instances, Unreadable, Written
from mm_numeric.baselines.baseline import Baseline
from mm_numeric.config.data import Sources, named
from mm_numeric.config.data import listed as listed_sources
from mm_numeric.config.schema import TINY, Config
from mm_numeric.config.trainer_settings import step_notes
from mm_numeric.data.augment import Augmenter, make_augmenter
from mm_numeric.data.collator import TrainingCollator, make_collator
from mm_numeric.data.examples import (
    ONLY_KNOWN,
    NoRowsError,
    examples_and_errors,
    only_known_questions,
)
from mm_numeric.data.framing import check_sizes, compute_frame
from mm_numeric.data.images import image_size, open_sized
from mm_numeric.data.lengths import TooLongError, count_image_tokens, row_tokens
from mm_numeric.evaluation.check_data.findings import (
    DataReport,
    EncodedExample,
    SourceReport,
    num_objects,
    problem_kind,
)
from mm_numeric.evaluation.check_data.memory import RowLength, estimate_memory
from mm_numeric.evaluation.metrics.detection import scores_by_iou
from mm_numeric.evaluation.score_text import in_unit
from mm_numeric.families.chat_template import listed
from mm_numeric.families.family import Tokens
from mm_numeric.geometry.coordinate_range import shapes_of
from mm_numeric.geometry.row_shapes import clipped_answer
from mm_numeric.io.log import progress
from mm_numeric.losses.term import MANY_DIGITS
from mm_numeric.models.loading import family_class, load_family, quiet_unless_terminal
from mm_numeric.numbers.spans import TokenNumber
from mm_numeric.registry import scorer_of
from mm_numeric.tasks.base import Task

_BATCHES = 16  # number of batches that are collated
_LOW_CEILING = 0.9  # with a lower ceiling, the answers or their format are most likely wrong


def check_data(
    config: Config,
    *,
    limit: int | None = None,
    images: int = 200,
    size_px: tuple[int, int] | None = None,
) -> DataReport:
    """Check the training rows and the test rows of a config.

    Only the first ``limit`` examples of each source are checked; None: all. The first ``images``
    images are decoded; of the other images, only the file header is read. If an image is missing
    and its row has no size, the image is assumed to have the width and height ``size_px``.
    """
    quiet_unless_terminal()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = config.model.name
        if checkpoint == TINY:
            checkpoint = f"{folder}/tiny"
            family_class(config).make_tiny(Path(checkpoint), seed=0)
        family = load_family(config, checkpoint)
        settings = family.load_config(checkpoint, config.model)
    collator = make_collator(config, family)
    if isinstance(family, Baseline):
        found = _examples(config, config.data.train, limit, training=True)
        family.fit(config.task, [e for e, error in found if e and error is None])
    report = DataReport(config, collator, family.max_positions, [], [])
    wanted: dict[str, Sources] = {"train": config.data.train, "test": config.data.test}
    for name, data in wanted.items():
        found = _examples(config, data, limit, training=name == "train")
        source = SourceReport(name, named(data))
        # The length limit applies to training rows only.
        checked_with = collator if name == "train" else replace(collator, length_limit=None)
        report.sources.append(source)
        rows = progress(found, desc=f"checking {name} data", unit="question")
        for count, (example, error) in enumerate(rows):
            if example is not None and example.size_px is None and error is not None:
                example = replace(example, size_px=size_px)
            _check_example(source, checked_with, example, error, decode=count < images)
        _check_batches(source, checked_with, settings)
        _check_lengths(report, source)
        _compute_ceiling(report, source)
        _name_causes(source, config.task)
    lengths = [
        RowLength(e.question_tokens, e.answer_tokens, e.image_tokens)
        for e in report.sources[0].examples
    ]
    if lengths:
        report.memory = estimate_memory(config, family, settings, lengths)
    examples = [e.example for e in report.sources[0].examples]
    report.augment = make_augmenter(config, examples)
    every = config.evaluate.every_steps if config.evaluate else None
    report.notes += step_notes(config.trainer, every, len(lengths) if limit is None else None)
    report.notes += notes(report)
    if report.augment is not None:
        shown = [e.example for e in report.sources[0].examples if e.has_image]
        report.notes += _augmentation_notes(report.augment, shown[:images])
    return report


def _augmentation_notes(augment: Augmenter, examples: Sequence[Example]) -> Iterator[str]:
    """Yield a note that lists how many rows each augmentation changes in the first epoch."""
    drawn = [augment.draw(example, 0) for example in examples]
    applied = Counter(name for found in drawn for name in found.applied)
    rejected = Counter(name for found in drawn for name in found.rejected)
    texts = []
    for name in augment.operations if drawn else ():
        text = f"{name} {100 * applied[name] / len(drawn):.0f} %"
        if rejected[name]:
            text += f" (and {100 * rejected[name] / len(drawn):.0f} % that no draw fits)"
        texts.append(text)
    if drawn:
        changed = 100 * sum(found.applied != () for found in drawn) / len(drawn)
        yield (
            f"data.augment changes {changed:.0f} % of the first {len(drawn)} training "
            f"images in an epoch: {', '.join(texts)}. The ceilings are computed without "
            "augmentation."
        )


def _examples(
    config: Config, data: Sources, limit: int | None, *, training: bool
) -> Iterator[tuple[Any, ValueError | None]]:
    """Yield the first ``limit`` examples of each source (None: all), with their errors or None."""
    cache, seen = Path(config.data.cache), dict[str, str]()
    unique_ids = not (training and config.data.stream)
    for own in listed_sources(data):
        found = examples_and_errors(
            config.task, own, cache, training=training, seen=seen, unique_ids=unique_ids
        )
        yield from islice(found, limit)


def _check_example(
    source: SourceReport,
    collator: TrainingCollator,
    example: Example | None,
    error: ValueError | None,
    *,
    decode: bool,
) -> None:
    """Encode an example as in training; add the result or the error to the report.

    Unless ``decode``, only the header of the image file is read.
    """
    if isinstance(error, NoRowsError):
        source.add_problem("no rows", str(error))
        return
    source.questions += 1
    if error is not None and example is not None:
        source.add_problem(
            "the image is missing",
            str(error),
            "If the images are not on this machine, give the rows their width and height, or add "
            "--size WIDTHxHEIGHT: all else is then checked without them.",
        )
        if example.size_px is None:
            return
    elif error is not None or example is None:
        source.add_problem(problem_kind(str(error)), str(error))
        return
    try:
        has_image = error is None and example.image is not None
        size = _size(source, example, decode=decode) if has_image else example.size_px
        if example.answer is None:
            if source.name == "train":
                text = f"{example.where}: the row has no answer to train on."
                source.add_problem("no answer", text)
            else:
                source.unanswered += 1  # no error: ``predict`` needs no correct answers
            return
        if size is not None:
            source.coordinates.add(example.answer, size)
        encoded, answer, numbers = _encoded(collator, example, size, has_image)
    except ValueError as wrong:
        limit = collator.length_limit
        if isinstance(wrong, TooLongError) and limit and limit.too_long == "drop":
            source.too_long.append(example)
        else:
            source.add_problem(problem_kind(str(wrong)), str(wrong))
        return
    source.examples.append(encoded)
    written = encoded.written
    _check_answer(source, encoded, written.text, answer)
    _count_numbers(source, encoded, written, answer, numbers)


def _size(source: SourceReport, example: Example, *, decode: bool) -> tuple[int, int]:
    own = [replace(example, image=image) for image in example.images]
    sizes = [_image_size(source, one, decode=decode) for one in own]
    check_sizes(example, sizes)
    return sizes[0]


def _image_size(source: SourceReport, example: Example, *, decode: bool) -> tuple[int, int]:
    """Return the size of the first image of an example, and check that the image can be read.

    If a decoded image has only one colour, it is added to ``source.one_colour``.
    """
    assert example.image is not None
    if not decode:
        with suppress(ValueError):  # open_sized below raises an error that names the row
            return image_size(example.image)
    image, size = open_sized(example)
    if colours := image.getcolors(maxcolors=1):
        ((_, rgb),) = colours
        source.one_colour.setdefault(example.image, f"{example.where}, rgb{rgb}")
    return size


def _encoded(
    collator: TrainingCollator, example: Example, size: tuple[int, int] | None, has_image: bool
) -> tuple[EncodedExample, Tokens, list[TokenNumber]]:
    """Encode an example as in training; also return the tokens and numbers of the answer."""
    family = collator.family
    frame = None if size is None else compute_frame(family, example, size)
    frame = collator.fitted_frame(example, frame)
    image_tokens = count_image_tokens(family, example, frame)
    answer, numbers, *_ = collator.answer(example, frame)
    try:
        question = family.question(example.prompt, image_tokens)
    except ValueError as error:
        raise ValueError(f"{example.where}: {error}") from error
    encoded = EncodedExample(
        collator=collator,
        example=example,
        size_px=size,
        has_image=has_image,
        frame=frame,
        question_tokens=len(question),
        image_tokens=image_tokens,
        answer_tokens=len(answer.ids),
        number_tokens=sum(len(number.positions) for number in numbers),
        parsed=collator.task.read(family.text(answer.ids), frame),
    )
    return encoded, answer, numbers


def _check_batches(source: SourceReport, collator: TrainingCollator, settings: Any) -> None:
    """Collate some examples, one per batch, and report each batch that is incorrect.

    The number of image features must equal the number of image tokens. The labels must be exactly
    the answer tokens.
    """
    family = collator.family
    complete = [e for e in source.examples if e.has_image or e.example.image is None]
    for encoded in complete[:: max(len(complete) // _BATCHES, 1)][:_BATCHES]:
        example, where = encoded.example, encoded.example.where
        try:
            batch = collator([example])
        except TooLongError:
            continue  # _check_lengths reports it
        except ValueError as error:
            source.add_problem(problem_kind(str(error)), str(error))
            continue
        if encoded.has_image:
            seen, _ = collator.load_image(example)
            features = family.num_image_features(family.images(listed(seen)), settings)
            if features not in (None, encoded.image_tokens):
                source.add_problem(
                    "image tokens and features differ",
                    f"{where}: {encoded.image_tokens} placeholders for {features} features.",
                    "The image processor of the checkpoint does not match model.family.",
                )
        start = 0 if family.encoder_decoder else encoded.question_tokens - 1
        supervised = batch["supervised"][0].nonzero().squeeze(1).tolist()
        answer = encoded.answer.ids
        expected = list(range(start, start + len(answer)))
        if supervised != expected or batch["labels"].tolist() != answer:
            source.add_problem(
                "more in the loss than the answer",
                f"{where}: the labels are {family.tokenizer.decode(batch['labels'])!r:.80}.",
            )


def _check_lengths(report: DataReport, source: SourceReport) -> None:
    length, positions = report.max_new_tokens, report.positions
    longest = max((e.answer_tokens for e in source.examples), default=0)
    for encoded in source.examples:
        where, written = encoded.example.where, encoded.answer_tokens
        total = row_tokens(report.family, encoded.question_tokens, written)
        needed = row_tokens(report.family, encoded.question_tokens, length)
        if positions is not None and total > positions:
            source.add_problem(
                "longer than the model",
                f"{where}: {total} tokens ({encoded.image_tokens} of the image), and the model "
                f"has {positions} positions.",
                "Use smaller images (model.image_size), or remove the rows; nothing is truncated.",
            )
        elif source.name == "test" and positions is not None and needed > positions:
            source.add_problem(
                "longer than the model with predict.max_new_tokens",
                f"{where}: a question of {encoded.question_tokens} tokens and {length} new tokens, "
                f"and the model has {positions} positions.",
                f"Set predict.max_new_tokens to a smaller number, at least {longest}.",
            )
        if source.name == "test" and written > length:
            source.add_problem(
                "longer than predict.max_new_tokens",
                f"{where}: the answer and its end are {written} tokens; prediction stops at "
                f"{length}.",
                f"Set predict.max_new_tokens to at least {longest}.",
            )


def _check_answer(source: SourceReport, encoded: EncodedExample, text: str, answer: Tokens) -> None:
    """Report an answer that is not the same after its tokens are decoded and its text is parsed."""
    family, task, where = encoded.collator.family, encoded.collator.task, encoded.example.where
    *ids, end = answer.ids
    early = [token for token in ids if token in (*family.stop_ids, family.pad_id)]
    if early:
        name = family.tokenizer.convert_ids_to_tokens(early[0])
        source.add_problem(
            "answers that stop early",
            f"{where}: the answer {text!r:.60} holds {name}, which ends generation.",
            "Change the answer's text, or the format of model.coordinates.",
        )
    elif (decoded := family.text(answer.ids)) != text:
        source.add_problem(
            "answers that decode to another text",
            f"{where}: {text!r:.60} is decoded as {decoded!r:.60}.",
            "The tokenizer changes its spaces or characters; change the text of the answer.",
        )
    elif isinstance(encoded.parsed, Unreadable):
        source.add_problem(
            "answers that cannot be parsed",
            f"{where}: {text!r:.60} cannot be parsed: {encoded.parsed.reason}.",
        )
    elif (again := task.format(_inside(encoded), encoded.frame).text) != text and (
        _texts_of_objects(encoded, encoded.example.answer)
        != _texts_of_objects(encoded, _inside(encoded))
    ):
        pairs = enumerate(zip(text, again, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(text), len(again)))
        same = max(same - 20, 0)  # the message shows the texts around the first difference
        source.add_problem(
            "answers that are parsed as other answers",
            f"{where}: {text[same:]!r:.60} is parsed as {again[same:]!r:.60}.",
            "Change the label or the coordinates (model.coordinates), so that parsing the text "
            "returns the same answer.",
        )
    if ids and end not in family.stop_ids:  # a regression head has no ids
        source.add_problem("answers without an end", f"{where}: the answer has no end token.")


def _texts_of_objects(encoded: EncodedExample, answer: Any) -> Counter[str]:
    """Count how often each text occurs among the formatted objects of an answer.

    An answer that is not a list is treated as one object. The order of objects is not compared,
    because parsing may swap objects whose rounded coordinates are equal.
    """
    single = [answer]
    if isinstance(answer, Instances):
        single = [replace(answer, items=(item,)) for item in answer.items if not item.ignore]
    return Counter(encoded.collator.task.format(own, encoded.frame).text for own in single)


def _count_numbers(
    source: SourceReport,
    encoded: EncodedExample,
    written: Written,
    answer: Tokens,
    numbers: Sequence[TokenNumber],
) -> None:
    """Add the tokens and numbers of one answer to the statistics of its source.

    ``unmarked_digits`` does not count digits of the text format, such as the 2 in ``bbox_2d``, and
    digits of labels and transcriptions.
    """
    source.tokens.update(answer.ids[:-1])
    # Compare characters, not offsets: in T5, the token of a space has the offset of the next digit.
    known = written.format_digits | {
        character
        for number in numbers
        for position in number.positions
        for character in range(*answer.offsets[position])
    }
    if not isinstance(encoded.example.answer, Instances):  # in lists, other digits are in labels
        source.unmarked_digits += sum(
            character.isdigit() for i, character in enumerate(written.text) if i not in known
        )
    tokens = encoded.collator.vocabulary.tokens
    for number in numbers:
        digits = [len(tokens[j].digits) for j in number.targets]
        source.wide_tokens += sum(count > 1 for count in digits)
        source.long_numbers += sum(digits) > MANY_DIGITS


def _inside(encoded: EncodedExample) -> Any:
    """Return the parsed answer of an example, with boxes and polygons clipped to the image.

    If an image is padded to a square, rounded coordinates can lie slightly inside the padding.
    Without clipping, converting such a shape to text again could raise an error.
    """
    answer, frame = encoded.parsed, encoded.frame
    return answer if frame is None else clipped_answer(answer, frame.width_px, frame.height_px)


def _compute_ceiling(report: DataReport, source: SourceReport) -> None:
    """Score the correct answers of a source after they are formatted, truncated and parsed.

    Training answers are never truncated. A test answer ends after ``predict.max_new_tokens``.
    """
    config = report.config
    limit = report.max_new_tokens if source.name == "test" else None
    answers = [e.parsed_within(limit) for e in source.examples]
    targets: list[Any] = [e.example.answer for e in source.examples]
    if not targets:
        return
    source.scorer = scorer_of(config.task, config.task_name, targets[0], config.title)
    texts = [e.text_within(limit) for e in source.examples] if source.scorer.from_text else None
    columns = source.scorer.judge(answers, targets, texts=texts)
    source.ceiling = {m.name: float(m.value(columns)) for m in source.scorer.metrics}
    ranked = source.scorer.ranked
    if ranked is not None and any(not i.ignore for t in targets for i in t.items):
        read = [None if isinstance(answer, Unreadable) else answer for answer in answers]
        scores = scores_by_iou(read, targets)
        ranking = ranked.rank(read, targets, scores)
        source.ceiling |= {name: float(value) for name, value in ranking.metrics.items()}


def _name_causes(source: SourceReport, task: Task) -> None:
    """Report a low ceiling with its likely cause, and add advice to problems with shapes.

    A ceiling is low if the main metric is a share and below 90 %. It is not reported if another
    problem explains it, such as answers that cannot be parsed.
    """
    frames = [e.frame for e in source.examples if e.frame is not None]
    cause = source.coordinates.cause(median(max(f.step_px) for f in frames) if frames else 0.0)
    explained = False
    for kind, problem in source.problems.items():
        explained |= kind.startswith(("answers that", "longer than predict.max_new_tokens"))
        if "outside the image" in kind:
            problem.advice = cause or "Correct the shapes, or clip them (prepare --clip)."
        elif "the box ... is reversed" in kind:
            problem.advice = 'For numbers that are [x, y, width, height], the field is "box_xywh".'
    main = source.scorer.metrics[0] if source.scorer else None
    if main is None or explained or not (main.is_share and main.higher_is_better):
        return
    counts = task.count_classes(e.example for e in source.examples)
    if counts and (dropped := counts.all_dropped()):
        source.add_problem("no object is kept", f"{source.name} data: {dropped}")
    elif source.ceiling[main.name] < _LOW_CEILING:
        source.add_problem(
            "a low ceiling",
            f"The correct answers, written for the model and parsed, have {main.label} "
            f"{in_unit(source.ceiling[main.name], main.unit)}; no model can score higher.",
            cause or "Compare the answers that the page shows with those of the rows.",
        )


def _number_notes(sources: Sequence[SourceReport]) -> Iterator[str]:
    """Yield a sentence for each property of the numbers in answers that affects digit losses."""
    if unmarked := sum(source.unmarked_digits for source in sources):
        yield (
            f"{unmarked} digits of answers are in no marked number: cross-entropy alone trains "
            "them. objective.numbers: all includes every number in the tokens."
        )
    if wide := sum(source.wide_tokens for source in sources):
        yield (
            f"{wide} number tokens hold more than one digit: digit losses include each of the "
            "digits, but only cross-entropy trains how many digits a token has."
        )
    if long := sum(source.long_numbers for source in sources):
        yield (
            f"{long} numbers of answers have more than {MANY_DIGITS} digits: in emd_exp, ntil "
            "and ntil_soft they can have most of the gradient, unless normalise_places is true."
        )


def notes(report: DataReport) -> Iterator[str]:
    """Yield one sentence for each property of the data that a user may not expect."""
    sources, tokenizer = report.sources, report.family.tokenizer
    yield from _class_warnings(report)
    tokens = {token for source in sources for token in source.tokens}
    special = sorted(tokens.intersection(tokenizer.all_special_ids))
    if special:
        names = ", ".join(tokenizer.convert_ids_to_tokens(special)[:6])
        yield (
            f"Answers contain special tokens ({names}): this library keeps them, and other engines "
            "must decode with skip_special_tokens=False."
        )
    if dropped := sum(len(source.too_long) for source in sources):
        most = report.config.data.max_tokens
        objects = sum(num_objects(e.answer) for source in sources for e in source.too_long)
        kept = sum(num_objects(e.example.answer) for e in sources[0].examples)
        lost = f" with {objects:,} of {objects + kept:,} objects" if objects else ""
        yield f"{dropped} rows have more than {most} tokens, and are dropped{lost}."
    yield from _number_notes(sources)
    for source in sources:
        if rows := list(source.one_colour.values()):
            yield (
                f"{len(rows)} of the decoded images of the {source.name} data have only one colour "
                f"({rows[0]}), so that they show nothing. Transparent pixels become white; check "
                "these files."
            )
        frame = source.coordinates.frame_note()
        if frame and all(problem.advice != frame for problem in source.problems.values()):
            yield f"{source.name} data: {frame}"
    same_images, same_questions = _shared(sources)
    train, test = ([e.example for e in source.examples] for source in sources)
    if only_known_questions(train, test):
        yield ONLY_KNOWN[0].upper() + ONLY_KNOWN[1:]
    else:
        if same_images:
            yield f"{same_images} test questions are about an image of the training data."
        if same_questions:
            yield f"{same_questions} test questions are in the training data too."
    if collapsed := sum(_collapsed(e) for source in sources for e in source.examples):
        yield (
            f"{collapsed} shapes are narrower than one step of the coordinates, and have no area "
            "after parsing."
        )


def _class_warnings(report: DataReport) -> Iterator[str]:
    source, task = report.sources[0], report.config.task
    counts = task.count_classes(e.example for e in source.examples)
    too_long = task.count_classes(source.too_long)
    if source.examples and counts and too_long and "no object is kept" not in source.problems:
        yield from counts.warnings(too_long.objects)


def _collapsed(encoded: EncodedExample) -> int:
    """Count the true shapes without width or height after rounding to the model's coordinates."""
    outlines = (shape.points for shape in shapes_of(encoded.parsed))
    points = [own for own in outlines if len(own) > 1]  # a click is a point, which has no area
    return sum(min(len({p[0] for p in ps}), len({p[1] for p in ps})) < 2 for ps in points)


def _shared(sources: Sequence[SourceReport]) -> tuple[int, int]:
    """Count the test questions that also occur in the training data.

    Return two numbers: test questions about a training image, and test questions without an image
    that have the same text as a training question.
    """
    train, test = (source.examples for source in sources)
    images = {e.example.image for e in train if e.has_image}
    prompts = {e.example.prompt for e in train if e.example.image is None}
    same_images = sum(e.has_image and e.example.image in images for e in test)
    same_prompts = sum(e.example.image is None and e.example.prompt in prompts for e in test)
    return same_images, same_prompts
