"""Remarks on the data that ``check-data`` prints. They do not stop a training."""

from collections.abc import Iterator, Sequence

from mm_numeric.data.examples import ONLY_KNOWN, only_known_questions
from mm_numeric.evaluation.check_data.coordinate_range import shapes_of
from mm_numeric.evaluation.check_data.findings import (
    DataReport,
    EncodedExample,
    SourceReport,
    num_objects,
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
    """Yield a sentence for each class that is asked for and that no training row has."""
    source, task = report.sources[0], report.config.task
    counts = task.count_classes(e.example for e in source.examples)
    too_long = task.count_classes(source.too_long)
    if source.examples and counts and too_long:
        yield from counts.warnings(too_long.objects)


def _collapsed(encoded: EncodedExample) -> int:
    """Count the true shapes without width or height after rounding to the model's coordinates."""
    outlines = (shape.points for shape in shapes_of(encoded.parsed))
    points = [own for own in outlines if len(own) > 1]  # the answer to a click has no area to lose
    return sum(min(len({p[0] for p in ps}), len({p[1] for p in ps})) < 2 for ps in points)


def _shared(sources: Sequence[SourceReport]) -> tuple[int, int]:
    """Count the test questions that also occur in the training data, by image and by text.

    The first number counts the questions whose image is a training image. The second counts the
    questions without an image whose text is a training question.
    """
    train, test = (source.examples for source in sources)
    images = {e.example.image for e in train if e.has_image}
    prompts = {e.example.prompt for e in train if e.example.image is None}
    same_images = sum(e.has_image and e.example.image in images for e in test)
    same_prompts = sum(e.example.image is None and e.example.prompt in prompts for e in test)
    return same_images, same_prompts
