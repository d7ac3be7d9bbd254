"""A preset, and one step of it, for tests that hold it to something."""

from tokens import VOCABULARY

from mm_numeric.losses.objective import objective
from mm_numeric.losses.presets import PRESETS
from mm_numeric.losses.spec import TermSpec


def made(name, vocabulary=VOCABULARY, **changes):
    """Make a preset without its noise, so that it can be held to a number."""
    terms = tuple(TermSpec(name=term.name, weight=term.weight) for term in PRESETS[name].terms)
    return objective(name, vocabulary, **{"terms": terms, **changes})


def stepped(objective, logits, labels, **arguments):
    """Return the result of an objective and the gradient of its loss; not shifted by default."""
    leaf = logits.clone().requires_grad_()
    result = objective(leaf, labels, **{"shift": False, **arguments})
    result.loss.backward()
    return result, leaf.grad
