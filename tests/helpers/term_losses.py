"""Losses of a term for digit scores, without an objective around it."""

import torch
from tokens import TOKENIZER, VOCABULARY, labels_of

from mm_numeric.answers import Mark
from mm_numeric.losses.term import NumberClasses, NumberLogits
from mm_numeric.numbers.numerals import find_numerals
from mm_numeric.numbers.spans import NumberSpans, numbers_in_answer

VALUES = torch.arange(10.0, dtype=torch.float64)


def number_spans(text, *, digit_runs=False):
    """Return the spans of one text."""
    return NumberSpans.from_labels(labels_of(text), VOCABULARY, digit_runs=digit_runs)


def losses_of(term, scores, text, *, log_normaliser=None, digit_runs=False):
    """Return the losses of a term for digit scores [k, 10], where the label is a text."""
    normaliser = scores.logsumexp(-1) if log_normaliser is None else log_normaliser
    numbers = digit_logits(scores, normaliser)
    return term(numbers, number_spans(text, digit_runs=digit_runs))


def term_values(term, logits, spans, vocabulary=VOCABULARY):
    """Return the losses of a term for the logits [n, v] at the supervised positions."""
    own = logits[spans.position]
    classes = NumberClasses.of(vocabulary, logits.device, logits.dtype)
    scores = own[:, [token.id for token in vocabulary.tokens]]
    return term(NumberLogits.at(scores, own.logsumexp(-1), classes, spans.target), spans)


def digit_logits(scores, log_normaliser, values=VALUES):
    """Return the scores of classes that are one digit each, or worth something else."""
    values = values.to(scores)
    classes = NumberClasses(values, values[:, None], torch.ones_like(values))
    return NumberLogits(scores, log_normaliser, classes)


def certain(text, height=80.0):
    """Return scores [k, 10] of a model that is certain of the digits of a text."""
    digits = torch.tensor([int(character) for character in text if character.isdigit()])
    return height * torch.nn.functional.one_hot(digits, 10).double()


def random_scores(count, seed=0):
    """Return digit scores [k, 10]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 10, generator=generator, dtype=torch.float64)


def marked_spans(*answers):
    """Return the spans of answers, each a text and the roles of its numbers: ``x y x y | hour``.

    Roles after another bar are of another group, and every character is a supervised row.
    """
    numbers, rows, row = [], [], 0
    for text, roles in answers:
        of_number = [
            (role, group) for group, part in enumerate(roles.split("|")) for role in part.split()
        ]
        marks = [
            Mark(numeral.start, numeral.end, role, -1 if role == "free" else group)
            for numeral, (role, group) in zip(find_numerals(text), of_number, strict=True)
        ]
        offsets = [(i, i + 1) for i in range(len(text))]
        numbers.append(numbers_in_answer(text, marks, TOKENIZER.ids(text), offsets, VOCABULARY))
        rows.append({position: row + position for position in range(len(text))})
        row += len(text)
    return NumberSpans.build(numbers, rows)
