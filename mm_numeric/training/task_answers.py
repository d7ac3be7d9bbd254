"""The tree of all answers that the rows of a task can have, for losses of whole answers."""

from mm_numeric.answers import HALF_DAY_MINUTES, ClockTime, Number
from mm_numeric.baselines.baseline import Baseline
from mm_numeric.config.schema import Config
from mm_numeric.families.family import Family
from mm_numeric.io.log import logger
from mm_numeric.losses.answer_tree import AnswerTree
from mm_numeric.losses.term import make_term

MOST_EXTRA_TOKENS = 4096


def make_answer_tree(config: Config, family: Family) -> AnswerTree | None:
    """Return the tree of all answers of the task; None if no loss needs it.

    Raises ValueError if the settings do not allow extra tokens, or the answers are too many.
    """
    spec, title = config.objective.spec, config.title
    own = [t.name for t in spec.terms if make_term(t.name, t.options).per == "answer"]
    if not own:
        return None
    where = f"{title}, objective: {own[0]} reads the beginnings of all answers as extra tokens, "
    if family.encoder_decoder or isinstance(family, Baseline) or config.data.padding_free:
        other = "data.padding_free" if config.data.padding_free else f"model.family {family.name}"
        raise ValueError(f"{where}which {other} does not allow; use a decoder with padding.")
    answers: list[tuple[ClockTime | Number, float]]
    if spec.answer_range is None:
        times = map(ClockTime.from_minutes, range(HALF_DAY_MINUTES))
        answers = [(time, time.minutes) for time in times]
    else:
        lowest, highest = spec.answer_range
        answers = [(Number(str(n)), n) for n in range(lowest, highest + 1)]
    try:
        written = [(config.task.format(answer, None).text, value) for answer, value in answers]
    except (AttributeError, TypeError):
        kind = "times" if spec.answer_range is None else "numbers"
        raise ValueError(
            f"{where}and the answers of task.name are no {kind}; set objective.answer_range to "
            "the smallest and largest number, such as [0, 999], or leave it out for clock times."
        ) from None
    circle = HALF_DAY_MINUTES if spec.answer_range is None else None
    tree = AnswerTree.of({tuple(family.answer(t).ids): value for t, value in written}, circle)
    if len(tree.tokens) > MOST_EXTRA_TOKENS:
        raise ValueError(
            f"{where}and answer_range needs {len(tree.tokens)} of them for each row; at most "
            f"{MOST_EXTRA_TOKENS} are possible: choose a smaller range."
        )
    logger.info("%d answers, %d extra tokens per row", len(tree.values), len(tree.tokens))
    return tree
