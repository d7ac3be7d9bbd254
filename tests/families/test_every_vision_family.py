"""Every vision family learns boxes, trains on answers only, and parses its own answers."""

import json
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from each_family import marked
from PIL import Image
from rectangles import write_rectangles
from tiny_models import tiny_folder
from transformers import AutoProcessor

from mm_numeric.compat import video_settings_alone
from mm_numeric.config.data import DataSource
from mm_numeric.config.reader import config_from_dict
from mm_numeric.config.schema import ModelConfig
from mm_numeric.data.collator import BATCH_KEYS, TrainingCollator, prompt_batch
from mm_numeric.data.examples import load_examples
from mm_numeric.evaluation.metrics.boxes import iou
from mm_numeric.families.llava import LLAVA_HF
from mm_numeric.geometry.frames import Frame
from mm_numeric.inference.generate import generate, predict
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.presets import PRESETS
from mm_numeric.registry import FAMILIES, choose
from mm_numeric.tasks.grounding import Grounding
from mm_numeric.training.run import train

VISION = [name for name in FAMILIES if name not in ("causal_lm", "t5")]
WAYS = [(name, None) for name in VISION]
WAYS += [("paligemma", "relative_1000")]  # digits, not <loc>


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Eight images of rectangles."""
    return write_rectangles(tmp_path_factory.mktemp("rectangles"))


def load(name, coordinates=None):
    """Return a family and the settings it was loaded with."""
    model = ModelConfig(name="tiny", family=name, dtype="float32", coordinates=coordinates)
    return choose(name, FAMILIES, "family", "test").load(tiny_folder(name), model), model


def a_batch(family, rows, count=8):
    """Return a training batch and its examples."""
    task = Grounding()
    source = DataSource(path=str(rows))
    examples = load_examples(task, source, rows.parent, training=True)[:count]
    return TrainingCollator(family, task, family.vocabulary())(examples), examples


@pytest.mark.parametrize("name", VISION)
def test_the_saved_processor_alone_writes_the_same_inputs(tmp_path, name):
    family, _ = load(name)
    assert family.processor.tokenizer is family.tokenizer
    family.save(tmp_path)
    shutil.copy(f"{tiny_folder(name)}/config.json", tmp_path)
    with nullcontext() if find_spec("torchvision") else video_settings_alone():
        processor = AutoProcessor.from_pretrained(tmp_path)
    image, text = Image.new("RGB", (80, 50), (200, 90, 10)), "Where is 12?"
    ours = family.prompts([text], [image])
    if processor.chat_template is not None:
        question = [{"type": "image"}, {"type": "text", "text": text}]
        turns = [{"role": "user", "content": question}]
        text = processor.apply_chat_template(turns, add_generation_prompt=True)
    theirs = processor(images=image, text=text, return_tensors="pt")
    assert theirs["input_ids"].tolist() == ours.ids
    assert all(torch.equal(theirs[key], value) for key, value in ours.images.items())
    assert (processor.chat_template is None) == (name in ("paligemma", "florence2"))
    again = type(family).load(str(tmp_path), ModelConfig(name="tiny", family=name))
    saved = again.prompts(["Where is 12?"], [image])
    assert saved.ids == ours.ids
    assert all(torch.equal(saved.images[key], value) for key, value in ours.images.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", VISION)
def test_answers_do_not_depend_on_the_batch(rows, name):
    """Padding on the left and images must not leak; questions without an image go with others."""
    family, model = load(name)
    _, examples = a_batch(family, rows, 3)
    examples[1] = replace(examples[1], image=None, prompt="Why is that?")
    net = family.load_model(tiny_folder(name), model).eval()
    inputs, _ = prompt_batch(family, examples)
    assert (inputs["input_ids"][inputs["attention_mask"] == 0] == family.pad_id).all()
    together = [found.text for found in generate(net, family, examples, 6)]
    assert together == [next(generate(net, family, [row], 6)).text for row in examples]


def copy_of(name, folder):
    """Return a copy of a tiny model's folder without its weights."""
    ignored = shutil.ignore_patterns("*.safetensors")
    return shutil.copytree(tiny_folder(name), folder, ignore=ignored)


@pytest.mark.parametrize("name", [n for n in VISION if n != "chat"])
def test_another_token_for_an_image_is_rejected(tmp_path, name):
    folder = copy_of(name, tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (key,) = config.keys() & {"image_token_id", "image_token_index"}
    (folder / "config.json").write_text(json.dumps({**config, key: 7}), "utf-8")
    model = ModelConfig(name="tiny", family=name)
    family = choose(name, FAMILIES, "family", "test").load(str(folder), model)
    message = f"is {family.image_id}, and that of the model is 7; correct image_token_id"
    with pytest.raises(ValueError, match=message):
        family.load_model(str(folder), model)


@pytest.mark.parametrize("name", ["qwen2_vl", "llava", "chat"])
def test_the_template_may_be_in_the_file_of_older_processors(tmp_path, name):
    """SmolVLM, LLaVA-OneVision and others have chat_template.json, which no tokenizer reads."""
    folder, saved = copy_of(name, tmp_path / "copy"), tmp_path / "saved"
    file = folder / "chat_template.jinja"
    own = file.read_text("utf-8") if file.is_file() else LLAVA_HF
    template = f"older {own}"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}), "utf-8")
    file.unlink(missing_ok=True)
    cls, model = choose(name, FAMILIES, "family", "test"), ModelConfig(name="tiny", family=name)
    family = cls.load(str(folder), model)
    assert "older" in family.tokenizer.decode(family.question("?", 1))
    saved.mkdir()
    shutil.copy(folder / "config.json", saved)
    family.save(saved)
    assert cls.load(str(saved), model).question("?", 1) == family.question("?", 1)


@pytest.mark.parametrize(("name", "coordinates"), WAYS)
def test_the_answer_and_its_end_are_labels_and_nothing_else(rows, name, coordinates):
    family, _ = load(name, coordinates)
    batch, examples = a_batch(family, rows, 3)
    ends = [i for i, token in enumerate(batch["labels"].tolist()) if token in family.stop_ids]
    assert len(ends) == 3
    start = 0
    for end, example in zip(ends, examples, strict=True):
        frame = family.frame(80, 60)
        written = Grounding().format(example.answer, frame).text
        assert family.text(batch["labels"][start:end].tolist()) == written
        start = end + 1
    is_next = batch["supervised"].roll(1, dims=1)
    if family.encoder_decoder:  # the input of the decoder is shifted by one
        is_next[:, 0] = False
        rest = batch["labels"] != family.stop_ids[0]
        assert torch.equal(batch["decoder_input_ids"][is_next], batch["labels"][rest])
    else:
        assert torch.equal(batch["input_ids"][is_next], batch["labels"])


@pytest.mark.parametrize(("name", "coordinates"), marked(WAYS))
def test_numeric_losses_see_the_numbers(rows, name, coordinates):
    family, model = load(name, coordinates)
    batch, _ = a_batch(family, rows)
    vocabulary = family.vocabulary()
    spans = batch["spans"]
    assert len(spans.boxes) == 8
    assert len(spans.value) == 32
    digits = {vocabulary.tokens[j].digits for j in spans.target.tolist()}
    assert (digits == {""}) == (family.coordinates.bins is not None)  # bins are no digits
    net = family.load_model(tiny_folder(name), model).eval()
    labels, supervised, *_ = (batch.pop(key) for key in BATCH_KEYS)
    logits = net(**batch, logits_to_keep=supervised).logits
    for objective in ("emd", "ntil"):
        result = NumericLoss(PRESETS[objective], vocabulary=vocabulary)(logits, labels, spans)
        result.loss.backward(retain_graph=True)
        for part in PRESETS[objective].terms:
            assert result.sums[part.name].items > 0
            assert result.sums[part.name].total > 0


@pytest.mark.parametrize("name", VISION)
def test_every_parameter_is_in_one_part_and_lora_stays_in_the_language_model(name):
    family, model = load(name)
    net = family.load_model(tiny_folder(name), model)
    for parameter, _ in net.named_parameters(remove_duplicate=False):
        parts = [
            part for part, pattern in family.module_patterns.items() if re.match(pattern, parameter)
        ]
        assert len(parts) == 1, (parameter, parts)
    linear = [n for n, module in net.named_modules() if isinstance(module, torch.nn.Linear)]
    targets = [n for n in linear if re.fullmatch(family.lora_targets, n)]
    inside = [n for n in linear if re.match(family.module_patterns["language"], f"{n}.weight")]
    assert targets == inside
    assert len(targets) >= 7


@pytest.mark.slow
@pytest.mark.parametrize(("name", "coordinates"), WAYS)
def test_two_rectangles_are_learnt_and_found_again(tmp_path, name, coordinates):
    rows = write_rectangles(tmp_path, 2)
    config = config_from_dict(
        {
            "task": {"name": "grounding", "prompt": "{phrase}"},
            "data": {"train": {"path": str(rows)}, "test": {"path": str(rows)}},
            "model": {
                "name": "tiny",
                "family": name,
                "dtype": "float32",
                "coordinates": coordinates,
            },
            "evaluate": None,
            "trainer": {
                "output_dir": str(tmp_path / "run"),
                "per_device_train_batch_size": 2,
                "max_steps": 25 if coordinates is None else 35,
                "learning_rate": 9.0e-3,
                "warmup_steps": 4,
                "lr_scheduler_type": "cosine",
                "logging_steps": 10,
                "save_strategy": "no",
                "seed": 0,
            },
            "predict": {"max_new_tokens": 64},
        },
        where="test",
        title="test",
    )
    train(config)
    log = (tmp_path / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(log[-1])["loss"] < 0.1
    out = tmp_path / "predictions.jsonl"
    assert predict(tmp_path / "run", None, out) == 2
    task = Grounding()
    for line in out.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        assert row["reason"] is None, row["text"]
        found, wanted = task.recorded(row["parsed"]), task.recorded(row["target"])
        written = Frame.from_dict(row["frame"]).quantised(wanted)
        assert iou(found, written) > 0.9, row
