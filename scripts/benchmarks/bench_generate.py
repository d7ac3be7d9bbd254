"""Measure the time of generation: plain greedy, constrained, other libraries, decoding rules.

    python scripts/benchmarks/bench_generate.py
    python scripts/benchmarks/bench_generate.py --rounds 20 --batch 16
    python scripts/benchmarks/bench_generate.py --large --rounds 5   a model of 0.5 B parameters
    python scripts/benchmarks/bench_generate.py --run runs/clock_tiny   decoding rules, in a run
    python scripts/benchmarks/bench_generate.py --run runs/clock_tiny --batch 64 --prompt 1000

Without ``--run``, there are two tables. For the first, a tiny random Qwen2-VL generates answers;
the time is that of ``model.generate``, divided by its number of tokens. Plain greedy generation
also has a logits processor, as in ``predict``, which changes nothing. For the second, no model is
run: only the logits of a vocabulary of 151,936 tokens, as large as Qwen2-VL's, are masked at each
step of an answer. Contenders take turns within a round, each in turn as the first. Times are CPU
times of this process, so that other processes matter little; set OMP_NUM_THREADS=1. Compare the
ratios of one run, not its seconds. Boxes are written with digits and brackets, because llguidance
does not write the special tokens of a regular expression.

xgrammar and llguidance are measured if they are installed, and compile the same regular expression.
To add a contender, add a function to ``DECODERS`` or ``MASKS``.

With ``--large``, the contenders of the first table generate with a random Qwen2 of the size of
Qwen2.5-0.5B, whose output has as many logits as the second table; it needs 2 GB of memory.

With ``--run``, a finished run answers its first test rows: the time of a row includes images, the
exploration of answers, parsing and the choice of the answer, as in ``predict``. ``positions`` is
the number of tokens after the prompt that the model reads for a row. With ``--prompt``, words are
added to the first question, and the other prompts are padded to its length.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))  # from a checkout, whether installed or not

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

from mm_numeric.answers import Example
from mm_numeric.config.decoding import GREEDY, MBR
from mm_numeric.config.schema import ModelConfig
from mm_numeric.data.collator import prompt_batch
from mm_numeric.data.examples import load_examples
from mm_numeric.families.family import Family
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.families.tiny import tiny_qwen2_tokenizer
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.inference.constrain import Constrainer, Constraint
from mm_numeric.inference.decode import Explorer
from mm_numeric.inference.generate import generate, prediction
from mm_numeric.inference.token_automaton import TokenAutomaton
from mm_numeric.models.loading import load_family, load_model
from mm_numeric.models.precision import Precision
from mm_numeric.runs.folder import MODEL, read_run
from mm_numeric.tasks.grounding import Grounding

VOCABULARY = 151_936
STEPS = 24
_TINY = ModelConfig(name="tiny", dtype="float32")


class Setting(NamedTuple):
    """The model, the grammar and the size of the answers that contenders generate."""

    family: Qwen2VL
    model: Any
    """None in the table without a model."""

    grammar: str
    rows: int
    width: int
    """Number of logits of a row."""

    steps: int = STEPS
    """Largest number of tokens of an answer."""


Step = Callable[[Tensor, Tensor], Tensor]
"""Function from ids [b, t] and logits [b, v] to the masked logits of the next step."""


def ours(setting: Setting) -> Callable[[], Step]:
    """Return a function that makes the constraint of a batch."""
    automaton = TokenAutomaton(setting.family)
    start = automaton.start(setting.grammar)
    return lambda: Constraint(automaton, [start] * setting.rows, STEPS * 40)


def xgrammar(setting: Setting) -> Callable[[], Step]:
    """Return a function that makes xgrammar's logits processor of a batch."""
    import xgrammar as xgr  # type: ignore[import-not-found]

    tokenizer, stops = setting.family.tokenizer, setting.family.stop_ids
    info = xgr.TokenizerInfo.from_huggingface(
        tokenizer, vocab_size=setting.width, stop_token_ids=stops
    )
    compiled = xgr.GrammarCompiler(info, max_threads=1).compile_regex(setting.grammar)
    return lambda: xgr.contrib.hf.LogitsProcessor(compiled)


def llguidance(setting: Setting) -> Callable[[], Step]:
    """Return a function that makes a logits processor of llguidance's matchers."""
    import llguidance.hf  # type: ignore[import-not-found]
    import llguidance.torch as masks  # type: ignore[import-not-found]
    from llguidance import LLMatcher

    tokenizer, stops = setting.family.tokenizer, setting.family.stop_ids
    converted = llguidance.hf.from_tokenizer(tokenizer, n_vocab=setting.width, eos_token=stops[0])
    grammar = LLMatcher.grammar_from_regex(setting.grammar)

    def made() -> Step:
        matchers = [LLMatcher(converted, grammar) for _ in range(setting.rows)]
        mask = masks.allocate_token_bitmask(setting.rows, setting.width)
        has_begun = False

        def step(ids: Tensor, scores: Tensor) -> Tensor:
            nonlocal has_begun
            for i, matcher in enumerate(matchers):
                if has_begun and not matcher.is_stopped():
                    matcher.consume_token(int(ids[i, -1]))
                masks.fill_next_token_bitmask(matcher, mask, i)
            has_begun = True
            masks.apply_token_bitmask_inplace(scores, mask)
            return scores

        return step

    return made


MASKS: Mapping[str, Callable[[Setting], Callable[[], Step]]] = {
    "constrained": ours,
    "xgrammar": xgrammar,
    "llguidance": llguidance,
}
"""Libraries that mask logits: functions that compile a grammar once."""


def plain(setting: Setting, *processors: Step) -> int:
    """Generate tokens greedily for each row; return the largest number of a row."""
    inputs = torch.full((setting.rows, 16), setting.family.token_id("What"))
    written = setting.model.generate(
        input_ids=inputs,
        attention_mask=torch.ones_like(inputs),
        logits_processor=LogitsProcessorList(processors),
        max_new_tokens=setting.steps,
        do_sample=False,
        eos_token_id=setting.family.stop_ids,
        pad_token_id=setting.family.pad_id,
    )
    return int(written.shape[1] - inputs.shape[1])


def with_mask(name: str) -> Callable[[Setting], Callable[[], int]]:
    """Return a contender that generates with the mask of a library."""

    def prepared(setting: Setting) -> Callable[[], int]:
        made = MASKS[name](setting)
        return lambda: plain(setting, made())

    return prepared


DECODERS: Mapping[str, Callable[[Setting], Callable[[], int]]] = {
    "plain greedy": lambda setting: lambda: plain(setting, lambda ids, scores: scores),
    **{name: with_mask(name) for name in MASKS},
}
"""Contenders with a model: a function that prepares a function, which generates answers of a batch
and returns the number of tokens of each row. The first is the one that others are compared with."""


def mask_alone(name: str) -> Callable[[Setting], Callable[[], int]]:
    """Return a contender that masks random logits, and takes the best token, at each step."""

    def prepared(setting: Setting) -> Callable[[], int]:
        made = MASKS[name](setting) if name in MASKS else lambda: lambda ids, scores: scores
        torch.manual_seed(0)
        logits = torch.randn(STEPS, setting.rows, setting.width)

        def run() -> int:
            step, ids = made(), torch.zeros(setting.rows, 1, dtype=torch.long)
            for scores in logits:
                best = step(ids, scores.clone()).argmax(dim=1)
                ids = torch.cat([ids, best[:, None]], dim=1)
            return STEPS

        return run

    return prepared


def large_tokenizer(count: int) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer like Qwen2's, with ``count`` tokens of random letters."""
    draw = np.random.default_rng(0)
    tiny = tiny_qwen2_tokenizer()
    names = tiny.all_special_tokens
    tokens = dict.fromkeys([*sorted(bytes_to_unicode().values()), "What"])
    letters = np.array([*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ,.;()[]{}\"'Ġ"])
    while len(tokens) < count - len(names):
        lengths = draw.integers(2, 9, 1000)
        tokens.update(dict.fromkeys("".join(draw.choice(letters, n)) for n in lengths))
    words = [*tokens][: count - len(names)]
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(words)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    large = PreTrainedTokenizerFast(tokenizer_object=backend)
    large.add_special_tokens({"extra_special_tokens": names})
    large.eos_token = "<|im_end|>"
    large.chat_template = tiny.chat_template
    return large


def compare(
    title: str,
    contenders: Mapping[str, Callable[[Any], Callable[[], int]]],
    setting: Setting | None,
    rounds: int,
    unit: str = "token",
    positions: Mapping[str, float] | None = None,
) -> None:
    """Print the time per token, or per row, of each contender and its ratio to the first.

    ``positions`` has the number of positions that each contender reads for a row.
    """
    runs, compile_seconds = {}, {}
    for name, prepare in contenders.items():
        if name in ("xgrammar", "llguidance") and find_spec(name) is None:
            continue
        start = time.perf_counter()
        runs[name] = prepare(setting)
        compile_seconds[name] = time.perf_counter() - start
        runs[name]()  # fills caches
    found: dict[str, list[float]] = {name: [] for name in runs}
    names = [*runs]
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            start = time.process_time()
            count = runs[name]()
            found[name].append(1000 * (time.process_time() - start) / count)
    last = "compile s" if positions is None else "positions"
    print(f"\n{title}\n{'':<16}{f'ms a {unit}':>12}{'ratio':>8}{'extra ms':>10}{last:>11}")
    first = found[next(iter(runs))]
    for name in contenders:
        if name not in runs:
            print(f"{name:<16}{'not installed':>15}")
            continue
        pairs = list(zip(found[name], first, strict=True))
        ratio = statistics.median(mine / other for mine, other in pairs)
        extra = statistics.median(mine - other for mine, other in pairs)
        print(
            f"{name:<16}{statistics.median(found[name]):12.3f}{ratio:8.3f}{extra:10.3f}"
            f"{compile_seconds[name] if positions is None else positions[name]:11.2f}"
        )


def large_model(count: int) -> Qwen2ForCausalLM:
    """Return a random Qwen2 of the size of Qwen2.5-0.5B, with ``count`` tokens."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=count,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).eval()


def lengthened(example: Example, family: Family, tokens: int) -> Example:
    """Append words to a question until its prompt has at least ``tokens`` tokens."""
    while (missing := tokens - prompt_batch(family, [example])[0]["input_ids"].shape[1]) > 0:
        example = replace(example, prompt=example.prompt + " and" * max(1, missing // 4))
    return example


def decode_run(run: Path, rows: int, rounds: int, prompt: int) -> None:
    """Print the time per row of each decoding rule, with the model and test rows of a run."""
    precision = Precision.of_run(run)
    config = precision.of_weights(read_run(run))
    family = load_family(config, str(run / MODEL))
    model = load_model(config, family, str(run / MODEL)).eval()
    found = load_examples(config.task, config.data.test, Path(config.data.cache), training=False)
    examples = [lengthened(found[0], family, prompt), *found[1:rows]]
    read: list[int] = []  # positions of each forward pass
    model.get_input_embeddings().register_forward_pre_hook(
        lambda _, arguments: read.append(arguments[0].numel())
    )
    positions: dict[str, float] = {}

    def contender(name: str, rule: str, **settings: Any) -> Callable[[None], Callable[[], int]]:
        own = replace(config, predict=replace(config.predict, decode=rule, **settings))
        constrainer = Constrainer(config.task, family) if own.predict.constrain else None

        def run_once() -> int:
            # A new one each time: it keeps the answers that it has parsed.
            explore = None if rule == GREEDY else Explorer(own.predict, family, config.task)
            length = own.predict.new_tokens
            read.clear()
            answers = generate(
                model,
                family,
                examples,
                length,
                explore=explore,
                constrainer=constrainer,
                precision=precision,
            )
            for example, answer in zip(examples, answers, strict=True):
                prediction(own, family, example, answer, rule)
            positions[name] = sum(read[1:]) / len(examples)  # the first pass reads the prompts
            return len(examples)

        return lambda _: run_once

    settings: dict[str, tuple[str, dict[str, Any]]] = {
        GREEDY: (GREEDY, {}),
        "greedy, constr.": (GREEDY, {"constrain": True}),
        "median": ("median", {}),
        "median, mass .95": ("median", {"mass": 0.95}),
        "median, constr.": ("median", {"constrain": True}),
        "mbr": (MBR, {}),
        "mbr, 32 samples": (MBR, {"samples": 32}),
        "mbr, constr.": (MBR, {"samples": 32, "constrain": True}),
    }
    if config.task.sampled_answers:
        del settings["median, constr."], settings["median, mass .95"]
    contenders = {name: contender(name, rule, **own) for name, (rule, own) in settings.items()}
    length = prompt_batch(family, examples)[0]["input_ids"].shape[1]
    title = f"{rows} rows of {config.task_name}, prompts of {length} tokens"
    compare(title, contenders, None, rounds, "row", positions)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=16, help="rows (default: 16)")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds (default: 9)")
    parser.add_argument(
        "--vocabulary", type=int, default=VOCABULARY, help="tokens of the second table"
    )
    parser.add_argument("--large", action="store_true", help="measure a model of 0.5 B parameters")
    parser.add_argument("--run", type=Path, help="measure decoding rules in this finished run")
    parser.add_argument(
        "--prompt", type=int, default=0, help="least number of tokens of the prompts of --run"
    )
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, torch {torch.__version__}, batch {options.batch}")
    if options.run:
        decode_run(options.run, options.batch, options.rounds, options.prompt)
        return
    with tempfile.TemporaryDirectory() as folder:
        Qwen2VL.make_tiny(Path(folder), seed=0)
        family = Qwen2VL.load(folder, _TINY)
        model = family.load_model(folder, _TINY).eval()
    frame = replace(family.frame(640, 480), coordinates=COORDINATES["relative_1000"])
    box = Grounding().grammar(frame)
    grammar = f"{box}(?:; {box}){{3,}}"  # longer than STEPS
    width = model.config.get_text_config().vocab_size
    setting = Setting(family, model, grammar, options.batch, width)
    large = Qwen2VL(large_tokenizer(options.vocabulary), family.image_processor, _TINY)
    with torch.no_grad():
        if options.large:
            setting = Setting(
                large,
                large_model(options.vocabulary),
                grammar,
                options.batch,
                options.vocabulary,
                steps=8,
            )
            compare("A Qwen2 of 0.5 B parameters writes", DECODERS, setting, options.rounds)
            return
        compare("A tiny Qwen2-VL writes lists of boxes", DECODERS, setting, options.rounds)
        setting = Setting(large, None, grammar, options.batch, options.vocabulary)
        names = ["argmax alone", *MASKS]
        masks = {name: mask_alone(name) for name in names}
        compare(f"The mask of {options.vocabulary:,} tokens", masks, setting, options.rounds)


if __name__ == "__main__":
    main()
