"""What a generated token costs on a GPU: the host waits once, and uploads once, under each rule."""

from functools import wraps
from itertools import pairwise

import pytest
import simulated_device
from simulated_device import NAME, record
from tiny_models import TINY, tiny_folder

from mm_numeric.answers import Example
from mm_numeric.config.decoding import PredictConfig
from mm_numeric.inference.constrain import Constrainer
from mm_numeric.inference.decode import Explorer
from mm_numeric.inference.generate import generate
from mm_numeric.registry import FAMILIES, choose
from mm_numeric.tasks.clock import Clock

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not simulated_device.is_installed(), reason="needs --simulated-device"),
]

STEPS = 5
ROWS = [
    Example(id=str(i), image=None, prompt=prompt, answer=None, where="test")
    for i, prompt in enumerate(("When?", "What time is it?", "And now, which time?"))
]
RULES = {
    "median": {"decode": "median"},
    "mean of the likeliest": {"decode": "mean", "mass": 0.9, "branches": 3},
    "mbr of samples": {"decode": "mbr", "samples": 4},
}


@pytest.fixture(scope="module", params=["qwen2_vl", "causal_lm", "t5"])
def loaded(request):
    cls = choose(request.param, FAMILIES, "family", "test")
    family = cls.load(tiny_folder(request.param), TINY)
    model = family.load_model(tiny_folder(request.param), TINY).to(NAME).eval()
    # The first exploration of a model has one more pass, which finds what attention it has.
    explore = Explorer(PredictConfig(decode="median"), family, Clock())
    assert len([*generate(model, family, ROWS[:1], 1, explore=explore)]) == 1
    return model, family


def answers_and_costs(loaded, monkeypatch, constrain, settings):
    """Return the answers of untrained models to three questions, and the costs of each token."""
    model, family = loaded
    task = Clock()
    explore = Explorer(PredictConfig(**settings), family, task) if settings else None
    constrainer = Constrainer(task, family, NAME) if constrain else None
    marks, forward = [], model.forward
    with record() as costs:

        @wraps(forward)
        def marked(*args, **kwargs):
            marks.append(costs.copy())
            return forward(*args, **kwargs)

        monkeypatch.setattr(model, "forward", marked)
        answers = [*generate(model, family, ROWS, STEPS, explore=explore, constrainer=constrainer)]
    tokens = [later.since(earlier) for earlier, later in pairwise(marks[1:])]
    assert len(tokens) >= 2 or not constrain  # an untrained model may end its answers at once
    return answers, tokens


@pytest.mark.parametrize("constrain", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_a_token_of_explored_answers_waits_once_and_uploads_once(
    loaded, monkeypatch, rule, constrain
):
    answers, tokens = answers_and_costs(loaded, monkeypatch, constrain, RULES[rule])
    assert not constrain or any(len(answer.candidates) > 1 for answer in answers)
    for costs in tokens:
        waits = [cause for cause in costs.waits if "transformers/masking_utils" not in cause]
        assert costs.totals()["waits"] <= 1 + (loaded[1].name == "T5"), costs.waits
        assert len(waits) == costs.waits[waits[0]] == 1
        assert costs.totals()["uploads"] == 1, costs.uploads


@pytest.mark.parametrize("constrain", [False, True])
def test_a_greedy_token_waits_for_transformers_and_for_its_mask(loaded, monkeypatch, constrain):
    _, tokens = answers_and_costs(loaded, monkeypatch, constrain, {})
    for costs in tokens:
        waits = [cause for cause in costs.waits if "> transformers/" not in cause]
        assert len(waits) == sum(costs.waits[cause] for cause in waits) == constrain
        assert costs.totals()["waits"] <= 2 + constrain, costs.waits
        assert costs.totals()["uploads"] == constrain, costs.uploads
