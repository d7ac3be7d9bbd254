"""What all baselines have in common: they stand in front of a family, ``(Xval, T5)``.

What a baseline adds to a model is in modules of a subclass of the model's own class, so that
``save_pretrained`` and ``from_pretrained`` know of it, and its settings are in config.json beside
the weights: a model trained with one is not loaded without it, or with another.
"""

import functools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import isfinite
from typing import Any, ClassVar, NamedTuple, Self

from mm_numeric.answers import Example
from mm_numeric.compat import concrete_classes
from mm_numeric.config.baseline import read_baseline
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.family import Family
from mm_numeric.families.loading import BASELINE, load_weights
from mm_numeric.numbers.numerals import Numeral, find_numerals
from mm_numeric.tasks.base import Task

MODULES = "baseline."
"""What the names of the added weights begin with."""


class Seen(NamedTuple):
    """The numbers of the rows that are trained on."""

    asked: list[Numeral]
    answered: list[Numeral]


class Baseline(Family):
    """A family whose model reads and writes numbers in another way."""

    settings_class: ClassVar[type]
    """A dataclass, what ``model.baseline`` may set."""

    own_loss: ClassVar[bool] = False
    """Whether it trains with a loss of its own, so that no numeric term can stand beside it."""

    single_digits: ClassVar[bool] = False
    """Whether it reads numbers from tokens of one digit."""

    new_modules: ClassVar[tuple[str, ...]] = ("head",)
    """Parts of the model that get new weights, and so have to be trained."""

    new_tokens: int = 0
    """How many tokens the model has beside those of the tokenizer, whose ids are behind them."""

    model_mixin: ClassVar[type]
    """What stands in front of the model's class."""

    fitted: dict[str, Any] | None = None
    """What was measured on the rows trained on; None until it is."""

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        """Wrap the tokenizer of a checkpoint; it is not changed."""
        self.choice = read_baseline(model.baseline, "model.baseline")
        self.settings = self.choice.settings
        self.first_id = len(tokenizer)
        super().__init__(tokenizer, image_processor, model)

    @classmethod
    def load(cls, source: str, model: ModelConfig) -> Self:
        """Load the tokenizer of a checkpoint, and what was fitted where it was trained so.

        Raises:
            ValueError: If it was trained otherwise.
        """
        if cls.single_digits:
            model = replace(model, digits="single")
        family = super().load(source, model)
        saved = getattr(cls.load_config(source, model), BASELINE, None)
        if saved is not None:
            ours = asdict(family.settings)
            for name, theirs in saved["settings"].items():
                if ours.get(name) != theirs:
                    raise ValueError(
                        f"model.baseline.{name}: the model in {source!r} was trained with "
                        f"{theirs!r}, and here it is {ours.get(name)!r}; set it as it was."
                    )
            family.fitted = saved["fitted"]
        return family

    def fit(self, task: Task, examples: Sequence[Example]) -> None:
        """Measure the numbers that are trained on, unless the checkpoint knows its own.

        Raises:
            ValueError: If there is none.
        """
        if self.fitted is not None:
            return
        asked, answered = [], []
        for example in examples:
            asked += find_numerals(example.prompt)
            answered += find_numerals(task.format(example.answer, None).text)
        if not any(isfinite(number.value) for number in answered):
            raise ValueError(
                f"model.baseline: {self.choice.name} is for answers that are numbers, and no row "
                "trained on has one; leave model.baseline out."
            )
        finite = [[n for n in found if isfinite(n.value)] for found in (asked, answered)]
        self.fitted = self._measured(Seen(*finite))

    @abstractmethod
    def _measured(self, seen: Seen) -> dict[str, Any]:
        """Return what is kept of the numbers that are trained on."""

    def load_model(self, source: str, model: ModelConfig) -> Any:
        """Load the weights of a checkpoint; those that the baseline adds are new in a plain one."""
        config = self.load_config(source, model)
        own = _concrete(self.model_class, config, source)
        kind = with_modules(self.model_mixin, own)
        fresh = not hasattr(config, BASELINE)
        loaded = load_weights(kind, self.name, source, model, new=MODULES if fresh else None)
        tokens = self.first_id + self.new_tokens
        if loaded.get_input_embeddings().num_embeddings < tokens:
            loaded.resize_token_embeddings(tokens, mean_resizing=False)
        saved = {
            "name": self.choice.name,
            "settings": asdict(self.settings),
            "fitted": self.fitted,
            "first_id": self.first_id,
        }
        setattr(loaded.config, BASELINE, saved)
        return loaded


def with_baseline(family: type[Family], value: Any, where: str) -> type[Family]:
    """Return a family with a baseline in front of it.

    Args:
        family: Its class.
        value: ``model.baseline``.
        where: The config and the field, for errors.

    Raises:
        ValueError: If there is no such baseline, or the family sees images.
    """
    kind = read_baseline(value, where).kind
    if family.takes_images:
        raise ValueError(
            f"{where}: baselines are for families that read text alone (causal_lm, t5), and "
            f"{family.name} takes images; leave it out."
        )
    # a sentence's `head` is the family's and what is new
    patterns = {
        part: rf"(?!{MODULES})(?:{pattern})" for part, pattern in family.module_patterns.items()
    }
    patterns["head"] = rf"{MODULES}|{family.module_patterns['head']}"
    return type(f"{kind.__name__}{family.__name__}", (kind, family), {"module_patterns": patterns})


@functools.cache
def with_modules(mixin: type, model_class: type) -> type:
    """Return a class of models with what a baseline adds; always the same for the same two."""
    return type(f"{mixin.__name__}{model_class.__name__}", (mixin, model_class), {})


def _concrete(model_class: Any, config: Any, source: str) -> type:
    """Return the class that an Auto class would load a checkpoint into.

    Raises:
        ValueError: If transformers has none.
    """
    mapping = concrete_classes(model_class)
    if mapping is None:
        return model_class  # type: ignore[no-any-return]
    if type(config) not in mapping:
        raise ValueError(
            f"model.baseline: {source!r} brings its own code ({config.model_type}), and baselines "
            "are for the model classes of transformers; leave model.baseline out."
        )
    return mapping[type(config)]  # type: ignore[no-any-return]
