"""The losses of whole answers, boxes and times, by how far the model's answer is from the label."""

from collections.abc import Iterable

import torch
from _bench import DIGITS, Stand
from torch import Tensor
from torch.nn.functional import one_hot

from mm_numeric.answers import HALF_DAY_MINUTES, Mark
from mm_numeric.losses.term import NumberClasses, NumberLogits, make_term
from mm_numeric.numbers.numerals import find_numerals
from mm_numeric.numbers.spans import NumberSpans, numbers_in_answer
from mm_numeric.numbers.vocabulary import NumberVocabulary

LOW, HIGH = 400, 600  # sides of the labelled box
MOST, STEP = 300, 20  # of the shifts of the predicted box
STEP_MINUTES = 20
TIME = "03:00"
CERTAINTY = 0.999  # a hundredth of probability on other tens would move a time by half an hour

Points = list[tuple[float, float]]


def losses_by_shift(name: str) -> Points:
    """Return the loss of a box that is shifted to the right by -300 to 300, or its CE (``ce``)."""
    shifts = range(-MOST, MOST + 1, STEP)
    answers = [f"{LOW + shift},{LOW},{HIGH + shift},{HIGH}" for shift in shifts]
    losses = _losses(name, answers, answers[MOST // STEP], ("x", "y", "x", "y"))
    return [(float(shift), loss) for shift, loss in zip(shifts, losses, strict=True)]


def losses_by_time(name: str) -> Points:
    """Return the loss, or the CE (``ce``), of each time of a 12-hour dial, by its hour."""
    minutes = range(0, HALF_DAY_MINUTES, STEP_MINUTES)
    answers = [f"{minute // 60 or 12:02}:{minute % 60:02}" for minute in minutes]
    losses = _losses(name, answers, TIME, ("hour", "minute"))
    return [(minute / 60, loss) for minute, loss in zip(minutes, losses, strict=True)]


def _losses(name: str, answers: Iterable[str], label: str, roles: tuple[str, ...]) -> list[float]:
    """Return the loss of a model that is nearly certain of each digit of an answer."""
    vocabulary = NumberVocabulary.from_tokenizer(Stand(100))
    classes = NumberClasses.of(vocabulary, torch.device("cpu"), torch.float64)
    found = zip(find_numerals(label), roles, strict=True)
    marks = [Mark(numeral.start, numeral.end, role, 0) for numeral, role in found]
    ids = [DIGITS.get(character, 0) for character in label]
    offsets = [(i, i + 1) for i in range(len(label))]
    numbers = numbers_in_answer(label, marks, ids, offsets, vocabulary)
    spans = NumberSpans.build([numbers], [{i: i for i in range(len(label))}])
    losses = []
    for answer in answers:
        logits = _probabilities(answer).log()
        scores = NumberLogits.at(logits, logits.logsumexp(dim=-1), classes, spans.target)
        if name == "ce":
            wanted = torch.tensor([int(c) for c in label if c.isdigit()])[:, None]
            losses.append(-logits.gather(1, wanted).mean().item())
        else:
            losses.append(make_term(name, {})(scores, spans).item())
    return losses


def _probabilities(answer: str) -> Tensor:
    """Return the probabilities [digits, 10] of a model that is nearly certain of an answer."""
    digits = torch.tensor([int(character) for character in answer if character.isdigit()])
    rest = (1 - CERTAINTY) / 9
    return rest + (CERTAINTY - rest) * one_hot(digits, 10).double()
