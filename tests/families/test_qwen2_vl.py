"""The Qwen2-VL family: prompts, answers and inputs, through real transformers classes."""

import pytest
import torch
from PIL import Image
from tiny_models import TINY, tiny_family, tiny_model
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from mm_numeric.collate import TrainingCollator, prompt_batch
from mm_numeric.data import open_picture
from mm_numeric.generate import generate
from mm_numeric.vocabulary import NumberVocabulary

PICTURE = Image.new("RGB", (70, 70), (200, 100, 50))


def test_digits_are_tokens_and_text_survives_the_tokenizer():
    tokenizer = tiny_family().tokenizer
    for text in ("7:05", "12:59", "What time is it?", "naïve ☃ 3.14"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text
    ids = tokenizer("12:59", add_special_tokens=False)["input_ids"]
    assert [tokenizer.decode([i]) for i in ids] == ["1", "2", ":", "5", "9"]


def test_prompt_has_one_placeholder_for_each_merged_patch():
    family = tiny_family()
    (ids,) = family.prompts(["What time is it?"], [PICTURE]).ids
    height, width = smart_resize(70, 70, factor=28, min_pixels=56 * 56, max_pixels=56 * 56)
    assert ids.count(family.image_id) == (height // 28) * (width // 28) == 4
    text = family.tokenizer.decode(ids)
    assert text.endswith("What time is it?<|im_end|>\n<|im_start|>assistant\n")
    assert text.startswith("<|im_start|>user\n<|vision_start|><|image_pad|>")


def test_an_answer_ends_with_the_token_that_stops_generation():
    family = tiny_family()
    answer = family.answer("7:05")
    assert answer.ids[-1] == family.stop_ids[0] == family.tokenizer.get_vocab()["<|im_end|>"]
    assert answer.offsets == [(0, 1), (1, 2), (2, 3), (3, 4), (0, 0)]


def test_the_model_has_about_a_million_parameters_and_its_seed_matters():
    one, same, other = tiny_model(0), tiny_model(0), tiny_model(1)
    assert 0.8e6 < sum(p.numel() for p in one.parameters()) < 1.3e6
    weights = [dict(m.named_parameters())["model.visual.patch_embed.proj.weight"]
               for m in (one, same, other)]  # fmt: skip
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_making_a_tiny_model_leaves_the_random_state_alone(tmp_path):
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    tiny_family().make_tiny(tmp_path, seed=3)
    assert torch.equal(torch.rand(1), expected)


def test_answers_do_not_depend_on_the_batch(clock_examples):
    """Left padding and pictures of a batch must not leak into each other."""
    _, examples = clock_examples
    family, model = tiny_family(), tiny_model().eval()
    together = list(generate(model, family, examples[:5], 6))
    alone = [next(generate(model, family, [example], 6)) for example in examples[:5]]
    assert together == alone


def test_a_checkpoint_s_own_habits_of_generation_are_set_aside(clock_examples):
    _, examples = clock_examples
    family, model = tiny_family(), tiny_model().eval()
    plain = list(generate(model, family, examples[:5], 6))
    model.generation_config.update(repetition_penalty=9.0, no_repeat_ngram_size=1, num_beams=3)
    assert list(generate(model, family, examples[:5], 6)) == plain


def test_logits_at_supervised_rows_equal_those_of_the_full_forward(clock_examples):
    task, examples = clock_examples
    family, model = tiny_family(), tiny_model().eval()
    vocabulary = NumberVocabulary.from_tokenizer(family.tokenizer)
    batch = TrainingCollator(family, task, vocabulary)(examples[:4])
    labels, supervised, _ = (batch.pop(k) for k in ("labels", "supervised", "spans"))
    with torch.no_grad():
        full = model(**batch).logits
        rows = model(**batch, logits_to_keep=supervised).logits
    torch.testing.assert_close(rows, full[supervised])
    assert len(rows) == len(labels)


def test_training_and_generation_write_the_same_prompt(clock_examples):
    task, examples = clock_examples
    family = tiny_family()
    vocabulary = NumberVocabulary.from_tokenizer(family.tokenizer)
    trained = TrainingCollator(family, task, vocabulary)(examples[:1])
    asked, _ = prompt_batch(family, examples[:1])
    length = asked["input_ids"].shape[1]
    assert torch.equal(trained["input_ids"][:, :length], asked["input_ids"])
    assert torch.equal(trained["pixel_values"], asked["pixel_values"])


def test_another_family_s_tokenizer_is_refused(clock_examples):
    from mm_numeric.families.qwen2_vl import Qwen2VL

    class OtherTokenizer:
        name_or_path = "other/model"

        def get_vocab(self):
            return {"a": 0}

    with pytest.raises(ValueError, match=r"other/model has no <\|image_pad\|>.*model\.family"):
        Qwen2VL(OtherTokenizer(), None, TINY)


def test_pictures_are_seen_in_colour_and_upright(clock_examples):
    _, examples = clock_examples
    assert open_picture(examples[0]).mode == "RGB"
