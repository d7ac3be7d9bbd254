"""The family ``chat``: tiny models of eight architectures through their own processors."""

import json
import re
import shutil
from collections import Counter
from dataclasses import replace

import pytest
import torch
from PIL import Image
from sized_rows import SIZES, sized_rows
from tiny_chats import CHATS, NEWER_CHATS
from tiny_models import small_config
from tiny_qwens import checkpoint
from transformers import (
    CONFIG_MAPPING,
    AutoModelForImageTextToText,
    AutoProcessor,
    MllamaImageProcessorPil,
    MllamaProcessor,
)
from transformers.utils import is_torchvision_available

from mm_numeric.answers import Box
from mm_numeric.config.reader import config_from_dict
from mm_numeric.config.schema import ModelConfig
from mm_numeric.data.collator import BATCH_KEYS, TrainingCollator, prompt_batch
from mm_numeric.families.chat import Chat
from mm_numeric.families.qwen3_vl import Qwen3VL
from mm_numeric.inference.generate import predict
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.presets import PRESETS
from mm_numeric.models.export import export
from mm_numeric.models.loading import load_family
from mm_numeric.tasks.grounding import Grounding
from mm_numeric.training.run import train

CHAT = ModelConfig(name="tiny", family="chat", dtype="float32")
each = pytest.mark.parametrize("name", CHATS | NEWER_CHATS)


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """Return the folder of a tiny model, made once."""
    made = {}

    def folder_of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("twins") / name
            (CHATS | NEWER_CHATS)[name](made[name], seed=0)
        return made[name]

    return folder_of


@pytest.fixture(scope="module")
def rows():
    """Images of four sizes with a box."""
    return sized_rows()


def settings(name):
    """Return settings that the model supports: the newer ones have no sdpa."""
    return replace(CHAT, attention="eager") if name in NEWER_CHATS else CHAT


def official_batch(family, examples):
    """Return the inputs and labels that the processor alone makes of whole conversations."""
    conversations, answers = [], []
    for example in examples:
        image = Image.open(example.image)
        answers.append(Grounding().format(example.answer, family.frame(*image.size)).text)
        question = [{"type": "image", "image": image}, {"type": "text", "text": example.prompt}]
        conversations.append(
            [
                {"role": "user", "content": question},
                {"role": "assistant", "content": [{"type": "text", "text": answers[-1]}]},
            ]
        )
    batch = family.processor.apply_chat_template(
        conversations,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        processor_kwargs={"padding": True, "padding_side": "right"},
    )
    end = family.stop_ids[0]
    batch["labels"] = torch.full_like(batch["input_ids"], -100)
    for i, answer in enumerate(answers):
        ids = batch["input_ids"][i].tolist()
        last = len(ids) - 1 - ids[::-1].index(end)
        first = last
        while family.tokenizer.decode(ids[first:last]).strip() != answer:
            first -= 1
        if family.tokenizer.decode(ids[first - 1]) == family.lead:  # a token of its own
            first -= 1
        batch["labels"][i, first : last + 1] = batch["input_ids"][i, first : last + 1]
    return batch


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("m['content'] + eos_token", "takes texts alone"),
        ("m['content']", "does not write the text of"),
        ("m['content'][0]['content']", "does not write the text of"),
    ],
)
def test_a_template_that_loses_the_text_of_a_message_is_an_error(twin, tmp_path, content, message):
    """Its start token would become the end token of answers."""
    folder = tmp_path / "model"
    shutil.copytree(twin("internvl"), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    template = "{% for m in messages %}<|im_start|>{{ " + content + " }}<|im_end|>{% endfor %}"
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        Chat.load(str(folder), CHAT)


@pytest.mark.slow
@each
def test_the_first_loss_is_that_of_the_official_processor(twin, rows, name):
    family = Chat.load(str(twin(name)), CHAT)
    model = family.load_model(str(twin(name)), settings(name)).eval()
    batch = TrainingCollator(family, Grounding(), family.vocabulary())(rows)
    labels, supervised, spans, _ = (batch.pop(key) for key in BATCH_KEYS)
    official = official_batch(family, rows)
    width = batch["input_ids"].shape[1]
    for key in batch.keys() & {"token_type_ids", "mm_token_type_ids"}:
        assert torch.equal(batch[key], official[key][:, :width])
    assert ("token_type_ids" in batch) == (name == "gemma3")
    for row, mask, whole in zip(
        batch["input_ids"], batch["attention_mask"], official["input_ids"], strict=True
    ):
        length = int(mask.sum())
        assert row[:length].tolist() == whole[:length].tolist()
    with torch.no_grad():
        wanted = model(**official).loss
        logits = model(**batch, logits_to_keep=supervised).logits
        batch["pixel_values"] = batch["pixel_values"].flip(0)
        blind = model(**batch, logits_to_keep=supervised).logits
    found = NumericLoss(PRESETS["ce"], vocabulary=family.vocabulary())(logits, labels, spans).loss
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
    assert (logits - blind).abs().max() > 1e-3  # the model sees its images
    assert len(spans.boxes) == len(SIZES)


@each
def test_lengths_are_known_without_the_pixels(twin, rows, name):
    family = Chat.load(str(twin(name)), CHAT)
    collate = TrainingCollator(family, Grounding(), family.vocabulary())
    lengths = collate(rows)["attention_mask"].sum(1).tolist()
    frames = [family.frame(*size) for size in SIZES]
    pairs = zip(rows, frames, strict=True)
    assert [collate.count(row, frame).total for row, frame in pairs] == lengths
    if name not in {"gemma3", "deepseek_vl_hybrid"}:  # a square image
        assert len({family.image_tokens(*size) for size in SIZES}) > 2
    for size in SIZES:  # a processor that cannot count
        assert family.image_tokens(*size) == family._expanded(*size)


def test_tokens_that_a_count_leaves_out_may_depend_on_the_size(twin, monkeypatch):
    """Apertus 1.5's count has no end of a row, so that a higher image lacks more."""
    family = Chat.load(str(twin("glm4v")), CHAT)
    exact = [family.image_tokens(*size) for size in SIZES]
    counted = family.processor._get_num_multimodal_tokens

    def without_rows(sizes):
        found = counted(sizes)["num_image_tokens"][0]
        return {"num_image_tokens": [found - sizes[0][0] // 28]}

    monkeypatch.setattr(family.processor, "_get_num_multimodal_tokens", without_rows)
    del family._uncounted
    assert [family.image_tokens(*size) for size in SIZES] == exact


@each
def test_prompts_with_and_without_an_image_share_a_batch(twin, rows, name):
    family = Chat.load(str(twin(name)), CHAT)
    model = family.load_model(str(twin(name)), settings(name)).eval()
    blind = type(rows[0])(id="x", prompt="Why?", answer=None, image=None, where="rows:9")
    mixed = [rows[0], blind, rows[1]]
    batch, _ = prompt_batch(family, mixed)
    with torch.no_grad():
        together = model(**batch).logits[:, -1]
        for i, example in enumerate(mixed):
            alone = model(**prompt_batch(family, [example])[0]).logits[0, -1]
            torch.testing.assert_close(together[i], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3", "idefics3"])  # InternVL's needs torchvision
def test_an_exported_model_writes_the_same_text_in_plain_transformers(twin, rows, tmp_path, name):
    data = {"path": str(rows[0].image.parent / "rows.jsonl")}
    config = config_from_dict(
        {
            "task": {"name": "grounding"},
            "data": {"train": data, "test": data},
            "model": {"name": str(twin(name)), "family": "chat", "dtype": "float32"},
            "modules": {"language": "adapted"},
            "lora": {"rank": 2},
            "trainer": {
                "output_dir": str(tmp_path / "run"),
                "max_steps": 2,
                "learning_rate": 1.0e-2,
                "save_strategy": "no",
            },
            "predict": {"max_new_tokens": 8},
        },
        where="test",
        title="test",
    )
    train(config)
    predict(tmp_path / "run", None, tmp_path / "predictions.jsonl")
    export(tmp_path / "run", tmp_path / "out")
    processor = AutoProcessor.from_pretrained(tmp_path / "out")
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "out")
    answers = (tmp_path / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    for example, answer in zip(rows, map(json.loads, answers), strict=True):
        question = {"type": "text", "text": example.prompt}
        image = {"type": "image", "image": Image.open(example.image)}
        inputs = processor.apply_chat_template(
            [{"role": "user", "content": [image, question]}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        written = model.generate(**inputs, max_new_tokens=8, do_sample=False)
        new = written[0, inputs["input_ids"].shape[1] :]
        assert processor.decode(new).strip() == answer["text"].strip()
    assert len({json.loads(answer)["text"] for answer in answers}) > 1


@each
def test_answers_end_like_the_template_ends_them(twin, name):
    family = Chat.load(str(twin(name)), CHAT)
    answer = family.answer("11:30")
    assert family.text(answer.ids) == "11:30"
    ends = {"gemma3": "<end_of_turn>", "gemma4": "<turn|>", "idefics3": "<end_of_utterance>"}
    assert family.tokenizer.decode(answer.ids[-1]) == ends.get(name, "<|im_end|>")
    assert family.lead == (" " if name == "idefics3" else "")
    first = next(i for i, offset in enumerate(answer.offsets) if offset != (0, 0))
    assert answer.offsets[first:-1] == [(i, i + 1) for i in range(len("11:30"))]


def test_images_have_the_dtype_of_the_model(twin, rows):
    half = replace(CHAT, dtype="bfloat16")
    family = Chat.load(str(twin("deepseek_vl_hybrid")), half)  # it does not convert its images
    batch = prompt_batch(family, rows)[0]
    assert batch["high_res_pixel_values"].dtype == torch.float32
    model = family.load_model(str(twin("deepseek_vl_hybrid")), half).eval()
    with torch.no_grad():
        assert model(**prompt_batch(family, rows)[0]).logits.isfinite().all()


@pytest.mark.parametrize("name", ["llama4", "deepseek_vl", "minicpmv4_6", "lighton_ocr"])
def test_every_parameter_belongs_to_one_module(name):
    config = CONFIG_MAPPING[name]()
    for part in (config.text_config, config.vision_config):
        part.num_hidden_layers = 1
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    found = Counter()
    for parameter, _ in model.named_parameters():
        (module,) = (m for m, own in Chat.module_patterns.items() if re.match(own, parameter))
        found[module] += 1
    assert found.keys() >= {"vision", "projector", "language", "embeddings"}
    linear = [n for n, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)]
    assert sum(re.fullmatch(Chat.lora_targets, layer) is not None for layer in linear) >= 6


def test_the_settings_of_a_video_processor_are_kept_without_torchvision(twin, tmp_path):
    family = Chat.load(str(twin("internvl")), CHAT)
    family.save(tmp_path)
    saved = json.loads((tmp_path / "processor_config.json").read_text(encoding="utf-8"))
    assert saved["video_processor"]["num_frames"] == 7
    again = Chat.load(str(tmp_path), CHAT)
    assert again.prompts(["?"], [Image.new("RGB", (99, 50))]).ids == (
        family.prompts(["?"], [Image.new("RGB", (99, 50))]).ids
    )


@pytest.mark.parametrize(
    ("name", "settings"),
    [("internvl", {"max_patches": 1}), ("idefics3", {"do_image_splitting": False})],
)
def test_a_setting_of_the_image_processor_makes_one_tile(twin, tmp_path, name, settings):
    image = Image.new("RGB", (300, 90), (9, 99, 200))
    whole, changed = (
        Chat.load(str(twin(name)), replace(CHAT, image_size=each)) for each in ({}, settings)
    )
    count = changed.image_tokens(*image.size)
    assert count < whole.image_tokens(*image.size) / 2
    ids = changed.prompts(["?"], [image]).ids[0]
    assert len(ids) == len(changed.question("?", 1)) - 1 + count
    changed.save(tmp_path)
    assert Chat.load(str(tmp_path), CHAT).prompts(["?"], [image]).ids == [ids]


@pytest.mark.parametrize("setting", ["crop_to_patches", "max_pixels"])
def test_a_setting_that_would_change_nothing_is_an_error(twin, setting):
    """The processor of InternVL always crops to patches itself."""
    model = replace(CHAT, image_size={setting: 1})
    with pytest.raises(ValueError, match=rf"image_size\.{setting}: chat has no .*max_patches"):
        Chat.load(str(twin("internvl")), model)


def test_a_shipped_family_and_chat_agree():
    source, image = checkpoint(Qwen3VL), Image.new("RGB", (90, 70), (9, 99, 200))
    model = ModelConfig(name="tiny", family="qwen3_vl", dtype="float32")
    one, other = Qwen3VL.load(source, model), Chat.load(source, CHAT)
    ours, theirs = (f.prompts(["Where?", "Why?"], [image, None]) for f in (one, other))
    assert ours.ids == theirs.ids
    for name, tensor in ours.images.items():
        torch.testing.assert_close(tensor, theirs.images[name])
    assert theirs.aligned["mm_token_type_ids"][0].count(1) == one.image_tokens(90, 70)
    assert one.stop_ids[0] == other.stop_ids[0]
    assert other.coordinates == one.coordinates
    box = Box(5, 6, 70, 60)
    written = [Grounding().format(box, f.frame(90, 70)).text for f in (one, other)]
    assert written[0] == written[1]


def test_what_chat_cannot_do_is_one_sentence(twin, tmp_path):
    folder = tmp_path / "no_template"
    shutil.copytree(twin("gemma3"), folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="has no chat template, no padding token, or"):
        Chat.load(str(folder), CHAT)
    pixels = ModelConfig(name="tiny", family="chat", coordinates="qwen2_5_vl")
    with pytest.raises(ValueError, match="pixels of the resized image, which family chat does not"):
        Chat.load(str(twin("gemma3")), pixels)
    tokenizer = Chat.load(str(twin("internvl")), CHAT).tokenizer
    tokenizer.add_tokens(["<|image|>"], special_tokens=True)
    cross = MllamaProcessor(MllamaImageProcessorPil(), tokenizer)
    with pytest.raises(ValueError, match="MllamaProcessor belongs to a model that reads images by"):
        Chat(tokenizer, cross, CHAT)
    folder = tmp_path / "t5gemma2"
    shutil.copytree(twin("gemma3"), folder)
    CONFIG_MAPPING["t5gemma2"]().save_pretrained(folder)
    with pytest.raises(ValueError, match="T5Gemma2ForConditionalGeneration, and family chat"):
        Chat.load(str(folder), CHAT).load_model(str(folder), CHAT)
    family = Chat.load(str(twin("gemma3")), CHAT)
    with pytest.raises(ValueError, match=r"rows:3: the question .* has <start_of_image>"):
        family.prompts(["a <start_of_image>"], [Image.new("RGB", (9, 9))], ["rows:3"])


@pytest.mark.skipif(is_torchvision_available(), reason="only without torchvision")
@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("processor_class", "PixtralProcessor", r"\(PixtralProcessor requires the Torchvision lib"),
        ("image_processor_type", "Llama4ImageProcessor", r"\(torchvision\); install it"),
    ],
)
def test_a_missing_package_is_named(twin, tmp_path, name, kind, text):
    folder = tmp_path / "model"
    shutil.copytree(twin("internvl"), folder)
    file = folder / "processor_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    (settings if name in settings else settings["image_processor"])[name] = kind
    file.write_text(json.dumps(settings), encoding="utf-8")
    config = small_config(tmp_path, "model.family=chat")
    with pytest.raises(ValueError, match=text):
        load_family(config, str(folder))
