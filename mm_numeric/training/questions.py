"""The questions that a run asks during and after training, checked before the first step."""

from collections.abc import Sequence
from pathlib import Path

from mm_numeric.answers import Example
from mm_numeric.config.schema import Config
from mm_numeric.data.examples import examples_and_errors
from mm_numeric.data.framing import load_framed_image
from mm_numeric.data.positions import check_questions
from mm_numeric.families.family import Family
from mm_numeric.log import progress


def asked_rows(
    config: Config, family: Family, evaluated: Sequence[Example], loaded: Sequence[Example]
) -> list[Example]:
    """Check the rows of an evaluation; return all rows whose questions may contain numbers.

    Their images are read, too: an unreadable one would end the training at its first evaluation.

    Args:
        config: Config of the run.
        family: Family of the model, which must have positions for question and answer.
        evaluated: Rows that are asked during training.
        loaded: Rows of the source for ``evaluate``, which may be the test rows.
    """
    for example in progress(evaluated, desc="checking images to evaluate", unit="row"):
        load_framed_image(family, example)
    if evaluated or config.predict.max_new_tokens is not None:
        check_questions(family, evaluated, config.predict.new_tokens)
    return [*evaluated, *_test_rows(config, loaded)] if family.limits_numbers else []


def check_numbers(family: Family, asked: Sequence[Example]) -> None:
    """Raise ValueError for a number in a question that is too long for a fitted family."""
    family.prompts([e.prompt for e in asked], [None] * len(asked), [e.where for e in asked])


def _test_rows(config: Config, loaded: Sequence[Example]) -> Sequence[Example]:
    """Return the valid rows of ``data.test``, whose answers are generated after training.

    Training needs no test rows, so a missing file or an invalid row causes no error here, but in
    ``predict``.
    """
    if config.evaluate is not None and config.evaluate.data is None:
        return loaded
    cache = Path(config.data.cache)
    found = examples_and_errors(config.task, config.data.test, cache, training=False)
    return [example for example, error in found if error is None]
