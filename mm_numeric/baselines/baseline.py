"""Base class of baselines: published methods for numbers in language models.

A baseline is combined with a model family: ``class XvalT5(Xval, T5)`` is T5 with the method xVal.
The modules that a baseline adds belong to a subclass of the Hugging Face model class, so
``save_pretrained`` and ``from_pretrained`` include them. The settings of the baseline, and
statistics of the training numbers, are saved in config.json. A trained model can only be loaded
with the same settings.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, cached_property
from math import isfinite
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor

from mm_numeric.answers import Example
from mm_numeric.compat import concrete_classes
from mm_numeric.config.schema import ModelConfig, read_baseline
from mm_numeric.families.family import Family
from mm_numeric.families.model_files import BASELINE, load_weights
from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.numeric_loss import NumericLoss, ObjectiveResult
from mm_numeric.losses.term import LossSum
from mm_numeric.numbers.numerals import Numeral, find_numerals
from mm_numeric.numbers.spans import NumberSpans
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.tasks.base import Task

NEW_WEIGHTS = "baseline."
"""Prefix of the parameter names of the modules that a baseline adds."""


class TrainingNumbers(NamedTuple):
    """All finite numbers of the training data, in two lists: from questions and from answers."""

    in_questions: list[Numeral]
    in_answers: list[Numeral]

    @property
    def decimals(self) -> int:
        """Return the largest number of digits after the decimal point in any answer."""
        return max(len(number.text.partition(".")[2]) for number in self.in_answers)

    @property
    def largest(self) -> float:
        """Return the largest absolute value of all numbers in questions and answers."""
        return max(abs(number.value) for number in self.in_questions + self.in_answers)


class Baseline(Family):
    """Base class of model families that use a published method for numbers, such as xVal."""

    settings_class: ClassVar[type]
    """Dataclass of the options in the config section ``model.baseline``."""

    own_loss: ClassVar[bool] = False
    """True if ``loss`` is the training loss, and the model generates numbers instead of tokens.
    Numeric losses, and decoding rules that explore several texts, are then not allowed."""

    single_digits: ClassVar[bool] = False
    """True if numbers must be tokenised digit by digit."""

    new_modules: ClassVar[tuple[str, ...]] = ("head",)
    """Names of the modules (parameter groups) that get new weights, so they must not be frozen."""

    new_tokens: int = 0
    """Number of new token ids, which follow the last id of the tokenizer."""

    model_mixin: ClassVar[type]
    """Mixin that adds the baseline's modules to the model class."""

    fitted: dict[str, Any] | None = None
    """Statistics of the numbers in the training data, saved with the model; None before ``fit``."""

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        self.choice = read_baseline(model.baseline, "model.baseline")
        self.settings = self.choice.settings
        self.first_id = len(tokenizer)
        super().__init__(tokenizer, image_processor, model)

    @classmethod
    def load(cls, source: str, model: ModelConfig) -> Self:
        """Load the tokenizer and, for a trained model, the statistics of its training numbers."""
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
                        f"{theirs!r}, and here it is {ours.get(name)!r}; set the same value."
                    )
            family.fitted = saved["fitted"]
        return family

    def fit(self, task: Task, examples: Sequence[Example]) -> None:
        """Compute statistics of the training numbers, unless the loaded model already has them."""
        if self.fitted is not None:
            return
        in_questions = _finite_numbers(example.prompt for example in examples)
        in_answers = _finite_numbers(task.format(e.answer, None).text for e in examples)
        if not in_answers:
            raise ValueError(
                f"model.baseline: {self.choice.name} is for answers that are numbers, and no row "
                "of the training data has one; remove model.baseline."
            )
        self.fitted = self._fit_numbers(TrainingNumbers(in_questions, in_answers))
        self._questions.clear()  # cached questions were tokenised with other statistics

    def loss(
        self,
        objective: NumericLoss,
        outputs: Any,
        labels: Tensor,
        spans: NumberSpans,
        counts: Counts | None,
    ) -> ObjectiveResult:
        """Return the training loss of a batch. Baselines with ``own_loss`` define it.

        Args:
            objective: The objective, which is cross-entropy without numeric losses.
            outputs: Outputs of the model, such as a ``NumberOutput``.
            labels: [n] ids of the n answer tokens; numbers are value ids.
            spans: The positions of numbers in ``labels``.
            counts: Counts of the optimiser step, by which sums are divided; None to use the counts
                of the batch.
        """
        raise NotImplementedError(f"{type(self).__name__} has no loss of its own")

    def mean_loss(self, sums: Mapping[str, LossSum]) -> Tensor:
        """Compute the loss from the sum and count of each component of ``loss``."""
        (only,) = sums.values()
        return only.mean

    @cached_property
    def _digits(self) -> NumberVocabulary:
        return NumberVocabulary.from_tokenizer(self.tokenizer)

    @abstractmethod
    def _fit_numbers(self, numbers: TrainingNumbers) -> dict[str, Any]:
        """Return statistics of the training numbers for config.json, such as the largest number."""

    def load_model(self, source: str, model: ModelConfig) -> Any:
        """Load the model with the modules that the baseline adds.

        The new modules get random weights if the checkpoint was trained without a baseline.
        """
        config = self.load_config(source, model)
        own = _concrete(self.model_class, config, source)
        kind = with_modules(self.model_mixin, own)
        fresh = not hasattr(config, BASELINE)
        loaded = load_weights(kind, self.name, source, model, new=NEW_WEIGHTS if fresh else None)
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


def _finite_numbers(texts: Iterable[str]) -> list[Numeral]:
    return [n for text in texts for n in find_numerals(text) if isfinite(n.value)]


def with_baseline(family: type[Family], value: Any, where: str) -> type[Family]:
    """Combine a text-only model family with a baseline (a published method such as xVal).

    Returns a new class: ``T5`` with the baseline ``xval`` becomes ``XvalT5``. ``value`` is the
    config setting ``model.baseline``: a name, or a mapping with settings. ``where`` names this
    setting in error messages.
    """
    kind = read_baseline(value, where).kind
    if family.takes_images:
        raise ValueError(
            f"{where}: baselines are for families without images (causal_lm, t5), not for "
            f"{family.name}; remove it."
        )
    patterns = {
        module: rf"(?!{NEW_WEIGHTS})(?:{pattern})"
        for module, pattern in family.module_patterns.items()
    }
    patterns["head"] = rf"{NEW_WEIGHTS}|{family.module_patterns['head']}"
    return type(f"{kind.__name__}{family.__name__}", (kind, family), {"module_patterns": patterns})


@cache
def with_modules(mixin: type, model_class: type) -> type:
    """Return a subclass of ``model_class`` with the modules that ``mixin`` adds to it."""
    return type(f"{mixin.__name__}{model_class.__name__}", (mixin, model_class), {})


def _concrete(model_class: Any, config: Any, source: str) -> type:
    """Return the model class that an Auto class of transformers selects for a configuration."""
    mapping = concrete_classes(model_class)
    if mapping is None:
        return model_class
    if type(config) not in mapping:
        raise ValueError(
            f"model.baseline: {source!r} brings its own code ({config.model_type}), which no "
            "baseline supports; remove model.baseline."
        )
    return mapping[type(config)]
