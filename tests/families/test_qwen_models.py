"""The models of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: modules, positions, padding, model types."""

import itertools
import re

import pytest
import torch
from PIL import Image
from tiny_models import TINY, tiny_family, tiny_model
from tiny_qwens import QWENS, checkpoint, each_qwen, qwen, qwen_model, real_model

from mm_numeric.answers import Example, Written
from mm_numeric.data.collator import TrainingCollator, prompt_batch
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.inference.generate import generate
from mm_numeric.numbers.vocabulary import NumberVocabulary


class Say:
    """A task whose answers are texts."""

    def format(self, answer, frame):
        return Written(answer, ())


def examples(folder, *rows):
    """Return examples from (size of the image or None, question, answer)."""
    found = []
    for i, (size, prompt, answer) in enumerate(rows):
        image = None if size is None else folder / f"{i}.png"
        if size is not None:
            Image.effect_noise(size, 90).convert("RGB").save(image)
        found.append(
            Example(id=str(i), image=image, prompt=prompt, answer=answer, where=f"row {i}")
        )
    return found


def collated(family, rows):
    vocabulary = NumberVocabulary.from_tokenizer(family.tokenizer)
    return TrainingCollator(family, Say(), vocabulary)(rows)


def supervised_logits(model, batch):
    """Return the logits of a training batch, [n, v]."""
    inputs = {k: v for k, v in batch.items() if k not in ("labels", "supervised", "spans")}
    with torch.no_grad():
        return model(**inputs, logits_to_keep=batch["supervised"]).logits


def test_the_seed_matters():
    one, same, other = tiny_model(0), tiny_model(0), tiny_model(1)
    assert 1.0e6 < sum(p.numel() for p in one.parameters()) < 1.3e6
    weights = [dict(m.named_parameters())["model.visual.patch_embed.proj.weight"]
               for m in (one, same, other)]  # fmt: skip
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@each_qwen
def test_making_a_tiny_model_leaves_the_random_state_alone(cls, tmp_path):
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    cls.make_tiny(tmp_path, seed=3)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("asked", "given_"),
    list(itertools.permutations(QWENS, 2)),
    ids=lambda cls: cls.default_coordinates,
)
def test_a_checkpoint_of_another_family_is_rejected(asked, given_):
    folder = checkpoint(given_)
    found, wanted = given_.default_coordinates, asked.default_coordinates
    message = rf"type '{found}', and {asked.name} is '{wanted}'"
    with pytest.raises(ValueError, match=message):
        asked.load(folder, TINY)
    with pytest.raises(ValueError, match=message):
        qwen(asked).load_model(folder, TINY)


def test_a_folder_with_a_tokenizer_alone_is_taken(tmp_path):
    qwen(Qwen2VL).save(tmp_path)
    assert Qwen2VL.load(str(tmp_path), TINY).resize == qwen(Qwen2VL).resize


@pytest.mark.slow
@each_qwen
def test_every_parameter_of_a_real_model_is_in_exactly_one_part(cls):
    names = [name for name, _ in real_model(cls).named_parameters()]
    found = {
        name: [p for p, where in cls.module_patterns.items() if re.match(where, name)]
        for name in names
    }
    assert {name: parts for name, parts in found.items() if len(parts) != 1} == {}
    assert {parts[0] for parts in found.values()} == set(cls.module_patterns)
    for name, (part,) in found.items():
        assert (part == "projector") == ("merger" in name)
        assert (part in ("vision", "projector")) == (".visual." in name)


@pytest.mark.slow
@each_qwen
def test_lora_goes_to_every_linear_layer_of_the_language_model_and_no_other(cls):
    linear = {n for n, m in real_model(cls).named_modules() if isinstance(m, torch.nn.Linear)}
    found = {name for name in linear if re.fullmatch(cls.lora_targets, name)}
    assert found == {name for name in linear if name.startswith("model.language_model.")}
    assert len(found) % 7 == 0  # q, k, v, o, gate, up, down


@each_qwen
def test_an_image_has_positions_in_rows_and_columns(cls, tmp_path):
    """M-RoPE: text positions continue after the longer side of the image."""
    family, model = qwen(cls), qwen_model(cls)
    inputs, _ = prompt_batch(family, examples(tmp_path, ((112, 56), "Where?", "")))
    (ids,) = inputs["input_ids"].tolist()
    first, patches = ids.index(family.image_id), ids.count(family.image_id)
    view = family.frame(112, 56).view
    rows, columns = view.height_px // family.resize.factor, view.width_px // family.resize.factor
    position_ids, _ = model.model.get_rope_index(
        inputs["input_ids"], inputs["mm_token_type_ids"], inputs["image_grid_thw"]
    )
    time, row, column = (axis[0, first : first + patches] - first for axis in position_ids)
    assert time.tolist() == [0] * patches
    assert row.tolist() == [i // columns for i in range(patches)]
    assert column.tolist() == list(range(columns)) * rows
    after = position_ids[:, 0, first + patches :] - first - columns
    assert after.tolist() == [list(range(len(ids) - first - patches))] * 3


@pytest.mark.slow
@each_qwen
def test_training_and_generation_see_the_same_in_any_batch(cls, tmp_path):
    """Logits of a padded training batch, of each row alone, and of generation step by step.

    Rows with images of several sizes and without any: positions in rows and columns of an image
    (M-RoPE), the padding of either side and the cache must not tell.
    """
    family, model = qwen(cls), qwen_model(cls)
    rows = examples(
        tmp_path,
        ((56, 112), "Where is it?", '[{"bbox_2d": [12, 3, 40, 51]}]'),
        (None, "3 + 4 =", "7"),
        ((112, 60), "And this one, that you see on the right?", "<|box_start|>(1,22)<|box_end|>"),
        (None, "How many are there in it, all told?", "1000"),
    )
    batch = collated(family, rows)
    trained = supervised_logits(model, batch)
    alone = torch.cat([supervised_logits(model, collated(family, [row])) for row in rows])
    torch.testing.assert_close(trained, alone, rtol=1e-4, atol=1e-4)

    answers = [family.answer(row.answer).ids for row in rows]
    inputs, _ = prompt_batch(family, rows)
    asked = inputs["input_ids"].shape[1]

    def next_of(row, ids):
        step = len(ids) - asked
        return [answers[row][step] if step < len(answers[row]) else family.pad_id]

    steps = model.generate(
        **inputs,
        max_new_tokens=64,
        do_sample=False,
        eos_token_id=family.stop_ids,
        pad_token_id=family.pad_id,
        prefix_allowed_tokens_fn=next_of,
        output_logits=True,
        return_dict_in_generate=True,
    ).logits
    generated = [steps[i][row] for row in range(len(rows)) for i in range(len(answers[row]))]
    torch.testing.assert_close(torch.stack(generated), trained, rtol=1e-4, atol=1e-4)
    assert len(steps) == max(map(len, answers))


@each_qwen
def test_a_batch_without_images_needs_none(cls, tmp_path):
    family, model = qwen(cls), qwen_model(cls)
    rows = examples(tmp_path, (None, "3 + 4 =", "7"), (None, "And with words in it?", "12"))
    batch = collated(family, rows)
    assert "pixel_values" not in batch
    alone = [supervised_logits(model, collated(family, [row])) for row in rows]
    torch.testing.assert_close(
        supervised_logits(model, batch), torch.cat(alone), rtol=1e-4, atol=1e-4
    )


@each_qwen
def test_logits_at_supervised_rows_equal_those_of_the_full_forward(cls, tmp_path):
    rows = examples(tmp_path, ((60, 60), "What?", "7:05"), ((90, 60), "Where is it?", "12:30"))
    model, batch = qwen_model(cls), collated(qwen(cls), rows)
    labels, supervised, _ = (batch.pop(k) for k in ("labels", "supervised", "spans"))
    with torch.no_grad():
        full = model(**batch).logits
        kept = model(**batch, logits_to_keep=supervised).logits
    torch.testing.assert_close(kept, full[supervised])
    assert len(kept) == len(labels)


def test_a_checkpoint_s_own_habits_of_generation_are_set_aside(clock_examples):
    _, clocks = clock_examples
    family, model = tiny_family(), tiny_model().eval()
    plain = [found.text for found in generate(model, family, clocks[:5], 6)]
    model.generation_config.update(repetition_penalty=9.0, no_repeat_ngram_size=1, num_beams=3)
    assert [found.text for found in generate(model, family, clocks[:5], 6)] == plain


@each_qwen
def test_training_and_generation_write_the_same_prompt(cls, tmp_path):
    family, rows = qwen(cls), examples(tmp_path, ((90, 60), "What?", "7:05"))
    trained = collated(family, rows)
    asked, _ = prompt_batch(family, rows)
    length = asked["input_ids"].shape[1]
    assert torch.equal(trained["input_ids"][:, :length], asked["input_ids"])
    assert torch.equal(trained["pixel_values"], asked["pixel_values"])
