"""Constrained generation: every answer is parsed, and whatever a task writes may be written."""

import copy
import functools
import json
import random
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import real_tokenizers
import thermometer
import torch
from baseline_runs import family_of
from each_family import marked
from PIL import Image
from tiny_models import TINY, small_config, tiny_folder
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from mm_numeric.answers import Box, ClockTime, Example, Instance, Instances, Number, Unreadable
from mm_numeric.cli import main as cli
from mm_numeric.families.causal_lm import CausalLM
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.families.t5 import T5
from mm_numeric.geometry.grammar import number_regex
from mm_numeric.inference.constrain import Constrainer, Constraint
from mm_numeric.inference.generate import generate, predict
from mm_numeric.inference.token_automaton import ENDED, TokenAutomaton
from mm_numeric.inference.token_texts import token_texts
from mm_numeric.registry import FAMILIES, TASKS, choose
from mm_numeric.tasks.base import task_class
from mm_numeric.tasks.clock import Clock
from mm_numeric.tasks.multirc import MultiRC
from mm_numeric.tasks.number_questions import Arithmetic
from mm_numeric.training.run import train

SHAPES = ("click", "detection", "grounding", "pointing", "text_detection", "text_spotting")
OPTIONS = {"multirc": [{}, {"answer": "yes_no"}], "gsm8k": [{}, {"solution": False}]}
EVERY = [
    (family, task, options)
    for i, family in enumerate(FAMILIES)
    for j, task in enumerate(TASKS)
    if (family not in ("causal_lm", "t5") if task in SHAPES else (i + j) % 3 == 0)
    for options in OPTIONS.get(task, [{}])
]
"""Each family with each task that has coordinates, whose format is the family's, and with a third
of the others."""


@functools.cache
def tiny(name, coordinates=None):
    """Return the family of a tiny model and its folder."""
    cls, settings = choose(name, FAMILIES, "family", "test"), replace(TINY, family=name)
    folder = tiny_folder(name)
    return cls.load(folder, replace(settings, coordinates=coordinates)), folder


@functools.cache
def constrainer_of(family, task, options=()):
    return Constrainer(task_class(task, "test")(**dict(options)), tiny(family)[0])


def allowed(constraint):
    """Return the tokens that may come next, True in [b, v]."""
    scores = torch.zeros(len(constraint.states), constraint.automaton.width)
    return constraint.allow(scores).isfinite()


def drawn(constraint, family, seed, stop=0.0):
    """Write answers with random logits; return the texts and whether each one has its end."""
    torch.manual_seed(seed)
    rows, written = len(constraint.states), [[] for _ in constraint.states]
    while constraint.left and (constraint.states != ENDED).any():
        scores = torch.rand(rows, constraint.automaton.width)
        scores[:, family.stop_ids] += stop
        tokens = scores.masked_fill(~allowed(constraint), -1).argmax(1).tolist()
        for ids, token in zip(written, tokens, strict=True):
            ids.append(token)
        constraint.advance(range(rows), tokens)
    return [family.text(ids) for ids in written]


@pytest.mark.parametrize(("name", "task", "options"), marked(EVERY))
def test_random_tokens_make_an_answer_within_any_limit(name, task, options):
    family, _ = tiny(name)
    constrainer = constrainer_of(name, task, tuple(options.items()))
    frame = family.frame(80, 60) if family.takes_images else None
    pattern = re.compile(constrainer.task.grammar(frame), re.DOTALL)
    (state,) = constrainer.batch([frame], 1, 10_000).states
    cost = int(constrainer.automaton.cost(state))
    for limit, stop in ((cost, 0.0), (cost + 1, 0.0), (cost + 5, 0.0), (60, 0.2)):
        constraint = constrainer.batch([frame] * 4, 4, max(limit, cost))
        for text in drawn(constraint, family, limit, stop):
            assert pattern.fullmatch(text), text
            assert not isinstance(constrainer.task.parse(text, frame), Unreadable), text
    with pytest.raises(ValueError, match=rf"may need {cost} tokens, and {cost - 1} are allowed"):
        constrainer.batch([frame], 1, cost - 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_an_untrained_model_writes_only_answers(name, tmp_path):
    family, folder = tiny(name)
    model = family.load_model(folder, replace(TINY, family=name)).eval()
    for i, size in enumerate(((64, 48), (48, 64))):
        Image.new("RGB", size, (40 * i, 9, 9)).save(tmp_path / f"{i}.png")
    examples = [
        Example(
            id=str(i), image=tmp_path / f"{i}.png" if family.takes_images else None,
            prompt=f"What is {i}?", answer=None, where="",
        )
        for i in range(2)
    ]  # fmt: skip
    for each, task, options in EVERY[::4]:
        if each == name:
            constrainer = constrainer_of(name, task, tuple(options.items()))
            for found in generate(model, family, examples, 48, constrainer=constrainer):
                answer = constrainer.task.parse(found.text, found.frame)
                assert not isinstance(answer, Unreadable), (task, found.text)
                assert all(0 <= p <= 1 for p in found.probabilities)


def width_of(family):
    return max(family.tokenizer.get_vocab().values()) + 1


def viable(family, answers, ids, prefix):
    """Return, for each token, whether an answer begins with the text of ``ids`` and the token."""
    tokens = family.tokenizer.convert_ids_to_tokens(range(width_of(family)))
    starts = {answer[:i] for answer in answers for i in range(len(answer) + 1)}
    found, start = np.zeros(len(tokens), bool), family.text(ids)
    for i, token in enumerate(tokens):
        if token is None or i in family.stop_ids or re.fullmatch("<0x..>|<pad>", token):
            continue
        text = family.text([*ids, i])
        found[i] = text in starts and (text != start or (token == "▁" and not ids))
        if not ids:  # a SentencePiece answer may begin with a space, which its text has not
            found[i] &= token.startswith("▁") == prefix
    return found


@dataclass(frozen=True, kw_only=True)
class SmallNumbers(Arithmetic):
    """Task whose answers are the whole numbers from -120 to 120."""

    def grammar(self, frame=None):
        return f"(?:0|-?{number_regex(1, 120)})"


@pytest.mark.parametrize("name", marked(n for n in FAMILIES if n not in ("qwen2_5_vl", "qwen3_vl")))
@pytest.mark.parametrize("task", ["clock", "arithmetic", "multirc"])
def test_masks_equal_brute_force_over_the_vocabulary(name, task):
    family, source = tiny(name)[0], random.Random(0)
    tasks = {"clock": Clock(), "multirc": MultiRC(answer="yes_no"), "arithmetic": SmallNumbers()}
    constrainer = Constrainer(tasks[task], family)
    answers = {
        "clock": {str(ClockTime(hour, minute)) for hour in range(1, 13) for minute in range(60)},
        "multirc": {"yes", "no"},
        "arithmetic": {str(number) for number in range(-120, 121)},
    }[task]
    tokens = family.tokenizer.convert_ids_to_tokens(range(width_of(family)))
    prefix = tokens[family.answer("1").ids[0]].startswith("▁")
    for _ in range(3):
        constraint, ids = constrainer.batch([None], 1, 20), []
        if family.lead == "<s>":  # a token of its own, before every answer
            ids = allowed(constraint)[0].nonzero()[:, 0].tolist()
            assert family.tokenizer.convert_ids_to_tokens(ids) == ["<s>"]
            constraint.advance([0], ids)
        while True:
            mask = allowed(constraint)[0].numpy()
            expected = viable(family, answers, ids, prefix)
            expected[family.stop_ids] = family.text(ids) in answers and bool(ids)
            assert (mask == expected).all(), [tokens[i] for i in np.nonzero(mask != expected)[0]]
            token = source.choice(np.nonzero(mask)[0].tolist())
            if token in family.stop_ids:
                break
            ids.append(token)
            constraint.advance([0], [token])


def answers_of(task):
    boxes = Instances((Instance(Box(3, 4, 50, 51), "red car"), Instance(Box(0, 0, 80, 60), "é")))
    return {
        "clock": [ClockTime(7, 5), ClockTime(12, 59)],
        "numbers": [Number("-12"), Number("3.50"), Number("2/7"), Number("120e3")],
        "grounding": [Box(3, 4, 50, 51), Box(0, 0, 80, 60)],
        "detection": [boxes],
    }[task]


def check_training_tokens(family, automaton, task, answer):
    frame = family.frame(80, 60) if family.takes_images else None
    state = automaton.start(task.grammar(frame), task.grammar_after(frame))
    constraint = Constraint(automaton, [state], 200)
    text = task.format(answer, frame).text
    for token in family.answer(text).ids:
        assert allowed(constraint)[0, token], (text, token)
        constraint.advance([0], [token])
    assert constraint.states.tolist() == [ENDED]
    assert allowed(constraint).nonzero().tolist() == [[0, family.pad_id]]


WAYS = [(name, None) for name in FAMILIES] + [
    ("paligemma", "relative_1000"), ("qwen2_vl", "qwen2_5_vl"), ("llava", "qwen2_vl"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "coordinates"), marked(WAYS))
def test_the_tokens_of_training_answers_are_allowed(name, coordinates):
    family = tiny(name, coordinates)[0]
    automaton = TokenAutomaton(family)
    for task in ("clock", "numbers", *(["grounding", "detection"] if family.takes_images else [])):
        for answer in answers_of(task):
            check_training_tokens(family, automaton, task_class(task, "test")(), answer)


def test_bytes_are_tokens_of_byt5():
    family = T5(ByT5Tokenizer(), None, TINY)
    automaton = TokenAutomaton(family)
    for task in ("clock", "numbers"):
        for answer in answers_of(task):
            check_training_tokens(family, automaton, task_class(task, "test")(), answer)
    (text, *_) = drawn(Constraint(automaton, [automaton.start("é{2}[a-z]{3}")], 9), family, 0)
    assert re.fullmatch("éé[a-z]{3}", text)


def test_a_token_with_a_character_that_is_no_byte_is_its_text():
    """As tokenizers decodes it."""
    vocabulary = {"Ġa": 0, "Ã©": 1, "a b": 2, "a\u00a0": 3, "中": 4}
    backend = Tokenizer(BPE(vocabulary, []))
    backend.pre_tokenizer, backend.decoder = ByteLevel(), ByteLevelDecoder()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    decoded = {index: tokenizer.decode([index]).encode() for index in vocabulary.values()}
    assert token_texts(tokenizer) == decoded


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama2", "llama3", "qwen2", "t5-small"])
def test_real_tokenizers_write_their_training_tokens(name):
    load, start = real_tokenizers.load, real_tokenizers.start_of_llama3
    tokenizer = start() if name == "llama3" else load(name)
    if name in ("llama3", "qwen2"):
        tokenizer = copy.deepcopy(tokenizer)  # other tests use it, too
    if name == "llama3":  # the file has its words, not its special tokens
        tokenizer.add_special_tokens({"eos_token": "<|end_of_text|>"})
    if name == "qwen2":
        names = tiny("qwen2_vl")[0].tokenizer.all_special_tokens
        tokenizer.add_special_tokens({"extra_special_tokens": names})
        with pytest.raises(ValueError, match=r"chat template .*, because it takes texts alone"):
            Qwen2VL(tokenizer, tiny("qwen2_vl")[0].image_processor, TINY)
        tokenizer.chat_template = tiny("qwen2_vl")[0].tokenizer.chat_template
        family = Qwen2VL(tokenizer, tiny("qwen2_vl")[0].image_processor, TINY)
    else:
        cls = T5 if name == "t5-small" else CausalLM
        family = cls(tokenizer, None, TINY)
    automaton = TokenAutomaton(family)
    for task in ("clock", "numbers", *(["grounding", "detection"] if family.takes_images else [])):
        for answer in answers_of(task):
            check_training_tokens(family, automaton, task_class(task, "test")(), answer)


def test_names_of_tokens_are_not_spelled_and_special_tokens_only_where_they_belong():
    for name, first in (("qwen2_vl", "<|box_start|>"), ("paligemma", None)):
        family = tiny(name)[0]
        constraint = constrainer_of(name, "grounding").batch([family.frame(80, 60)], 1, 60)
        (ids,) = allowed(constraint).numpy().nonzero()[1:]
        tokens = family.tokenizer.convert_ids_to_tokens(ids.tolist())
        assert tokens == [first] if first else [f"<loc{i:04d}>" for i in range(1024)]
    family = tiny("qwen2_vl")[0]
    text = constrainer_of("qwen2_vl", "multirc").batch([None], 1, 60)
    special = [i for i in family.tokenizer.all_special_ids if i not in family.stop_ids]
    assert not allowed(text)[0, special].any()
    assert not allowed(text)[0, family.stop_ids].any()  # the answer is empty


def test_the_second_corner_is_not_before_the_first():
    family = tiny("paligemma")[0]
    constraint = constrainer_of("paligemma", "grounding").batch([family.frame(80, 60)] * 2, 2, 4)
    level = family.tokenizer.convert_tokens_to_ids
    constraint.advance([0, 1], [level("<loc0900>"), level("<loc0004>")])
    constraint.advance([0, 1], [level("<loc0020>"), level("<loc1000>")])
    mask = allowed(constraint)
    levels = [level(f"<loc{i:04d}>") for i in range(1024)]
    assert mask[0, levels].tolist() == [i >= 900 for i in range(1024)]
    assert mask[1, levels].tolist() == [i >= 4 for i in range(1024)]


@pytest.mark.parametrize("joined", [",4", ", 4"])
def test_a_token_joins_no_separator_with_a_digit_of_the_second_corner(joined):
    settings = replace(TINY, family="llava", coordinates="relative_1000")
    family = choose("llava", FAMILIES, "family", "test").load(tiny("llava")[1], settings)
    family.tokenizer.add_tokens([joined])
    frame = family.frame(80, 60)
    constraint = Constrainer(task_class("grounding", "test")(), family).batch([frame], 1, 60)
    for token in family.answer("[512, 512").ids[:-1]:
        constraint.advance([0], [token])
    assert not allowed(constraint)[0, family.tokenizer.convert_tokens_to_ids(joined)]
    for token in allowed(constraint)[0].nonzero()[:, 0].tolist():
        constraint.automaton.next(int(constraint.states[0]), token)


def test_rows_are_selected_repeated_and_reordered():
    family = tiny("qwen2_vl")[0]
    constraint = constrainer_of("qwen2_vl", "clock").batch([None, None], 3, 8)
    ids = family.tokenizer.convert_tokens_to_ids
    assert constraint.states[2] == ENDED
    constraint.advance([0, 1], [ids("1"), ids("7")])
    assert allowed(constraint)[:, ids("2")].tolist() == [True, False]
    constraint.advance([1, 0, 0], [ids(":"), ids("2"), ids(":")])
    assert allowed(constraint)[:, [ids(":"), ids("5")]].tolist() == [[0, 1], [1, 0], [0, 1]]
    assert constraint.left == 6
    with pytest.raises(ValueError, match="does not allow token"):
        constraint.advance([0], [ids("9")])


def test_masks_that_do_not_fit_are_computed_again(monkeypatch):
    family = tiny("qwen2_vl")[0]
    few, many = TokenAutomaton(family), TokenAutomaton(family)
    monkeypatch.setattr("mm_numeric.inference.token_automaton._MOST_MASK_BYTES", 3 * few.width)
    grammar = task_class("numbers", "test")().grammar()
    found = [drawn(Constraint(a, [a.start(grammar)] * 4, 60), family, 0) for a in (few, many)]
    assert found[0] == found[1]
    many.reset()
    assert drawn(Constraint(many, [many.start(grammar)] * 4, 60), family, 0) == found[0]


def test_a_model_has_another_number_of_logits_than_tokens():
    automaton = TokenAutomaton(tiny("yi_vl")[0])
    for width in (automaton.width + 7, automaton.width - 3):
        constraint = Constraint(automaton, [automaton.start("[0-9]{3}")], 9)
        scores = constraint(torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, width))
        assert scores.shape == (1, width)
        assert scores.isfinite().any()


def test_no_rows_have_no_tokens():
    constraint = Constraint(TokenAutomaton(tiny("yi_vl")[0]), [], 9)
    assert constraint.allow(torch.zeros(0, 300)).shape == (0, 300)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a finished run of two steps."""
    folder = tmp_path_factory.mktemp("constrained")
    train(small_config(folder, "trainer.max_steps=2"))
    return folder / "run"


@pytest.mark.slow
def test_predict_writes_only_times(run, tmp_path, capsys):
    out = tmp_path / "p.jsonl"
    assert cli.main(["predict", "--model", str(run), "--out", str(out), "--constrain"]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 12
    assert all(line["parsed"] == line["text"] for line in lines)
    assert json.loads((tmp_path / "p.jsonl.made_by.json").read_text())["constrain"] is True
    with pytest.raises(ValueError, match="constrain is True there and not set here"):
        predict(run, None, out)
    plain = tmp_path / "plain.jsonl"
    predict(run, None, plain, limit=1)
    assert "constrain" not in json.loads((tmp_path / "plain.jsonl.made_by.json").read_text())
    with pytest.raises(ValueError, match="constrain is not set there and True here"):
        predict(run, None, plain, constrain=True)


@pytest.mark.slow
def test_an_evaluation_during_training_is_constrained(tmp_path):
    train(small_config(tmp_path, "trainer.max_steps=2", "predict.constrain=true",
                       "evaluate={every_steps: 2, rows: 4}"))  # fmt: skip
    (file,) = (tmp_path / "run").glob("evaluation/predictions.jsonl")
    assert all(json.loads(line)["reason"] is None for line in file.read_text().splitlines())


def test_what_cannot_be_constrained_is_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"^predict\.constrain: .* writes numbers with a baseline"):
        Constrainer(task_class("numbers", "test")(), family_of("causal_lm", "xval"))
    thermometer.install(tmp_path, monkeypatch)
    constrainer = Constrainer(task_class(thermometer.NAME, "test")(), tiny("causal_lm")[0])
    with pytest.raises(ValueError, match="the task Thermometer has no grammar; define its method"):
        constrainer.batch([None], 1, 9)
    automaton = TokenAutomaton(tiny("t5")[0])
    with pytest.raises(ValueError, match="has no tokens for the characters of the grammar"):
        automaton.start("é[0-9]")
    with pytest.raises(ValueError, match="has no tokens for the characters"):
        TokenAutomaton(tiny("yi_vl")[0]).start("a###")
