"""The questions that a run asks during and after training, checked before the first step."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from mm_numeric.answers import Example
from mm_numeric.baselines.baseline import Baseline
from mm_numeric.config.data import listed
from mm_numeric.config.schema import Config
from mm_numeric.data.examples import ONLY_KNOWN, load_examples, only_known_questions
from mm_numeric.data.framing import load_framed_image
from mm_numeric.data.sequence_limit import check_questions
from mm_numeric.data.training_set import TrainingRows
from mm_numeric.families.family import Family
from mm_numeric.io.log import ONCE, logger, progress


def check_evaluated(config: Config, family: Family, evaluated: Sequence[Example]) -> None:
    """Check the rows that are asked during training, for which the model must have positions.

    Their images are read, too: an unreadable one would end the training at its first evaluation.
    """
    for example in progress(evaluated, desc="checking images to evaluate", unit="row"):
        load_framed_image(family, example)
    if evaluated or config.predict.max_new_tokens is not None:
        check_questions(family, evaluated, config.predict.new_tokens)


def check_numbers(family: Family, asked: Sequence[Example]) -> None:
    """Raise ValueError for a number in a question that a fitted baseline cannot store."""
    if isinstance(family, Baseline):
        family.prompts([e.prompt for e in asked], [None] * len(asked), [e.where for e in asked])


def load_test_rows(
    config: Config, loaded: Sequence[Example], trained: TrainingRows
) -> Sequence[Example]:
    """Return the rows of ``data.test``, whose answers are generated after training.

    An invalid one, such as with a class that is not asked for, would end ``predict``. A warning is
    logged if all of them are trained on.

    Args:
        config: Config of the run.
        loaded: Rows of the source for ``evaluate``, which may be the test rows.
        trained: Training rows.
    """
    tests = loaded
    if config.evaluate is None or config.evaluate.data is not None:
        cache = Path(config.data.cache)
        tests = load_examples(config.task, config.data.test, cache, training=False)
    is_same_file = config.data.stream and any(
        own.path is not None and own.path == other.path
        for own, other in product(listed(config.data.train), listed(config.data.test))
    )
    if is_same_file or only_known_questions(trained.rows(), tests):
        logger.warning("%s", ONLY_KNOWN, extra=ONCE)
    return tests
