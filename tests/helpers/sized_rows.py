"""Rows with images of several sizes, and the tiny models of families and of chat models."""

import functools
import json
from dataclasses import replace

import torch
from PIL import Image
from tiny_chats import CHATS
from tiny_models import ROOT, small_config

from mm_numeric.config.data import DataSource
from mm_numeric.data.collator import BATCH_KEYS, TrainingCollator
from mm_numeric.data.examples import load_examples
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.models.loading import family_class, load_family
from mm_numeric.tasks.grounding import Grounding

SIZES = [(80, 60), (30, 200), (300, 90), (57, 56)]


@functools.cache
def sized_rows():
    """Return questions of several lengths about a box in images of several sizes."""
    folder, lines = ROOT / "sized-rows", []
    generator = torch.Generator().manual_seed(0)
    folder.mkdir()
    for i, (width, height) in enumerate(SIZES):
        pixels = torch.randint(256, (height, width, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")
        box = [3 + i, 5, width - 7, height - 11 * i]
        lines.append({"id": str(i), "image": f"{i}.png", "phrase": f"red {'box ' * i}", "box": box})
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return load_examples(Grounding(), DataSource(path=str(path)), folder, training=True)


def loaded(name, attention="sdpa"):
    """Return the collator and a tiny model of a family, or of a chat model in ``CHATS``."""
    family = "chat" if name in CHATS else name
    config = small_config(ROOT, f"model.family={family}", f"model.attention={attention}")
    source = ROOT / f"sized-{name}"
    if not source.is_dir():
        CHATS.get(name, family_class(config).make_tiny)(source, seed=0)
    found = load_family(config, str(source))
    collator = TrainingCollator(found, Grounding(), found.vocabulary())
    return collator, found.load_model(str(source), replace(config.model, dtype="float32"))


def gradients(model, batch, vocabulary):
    """Return the loss and the gradients of a batch, whose samples have one weight each."""
    model.zero_grad()
    inputs = {key: value for key, value in batch.items() if key not in BATCH_KEYS}
    if "image_inputs" in inputs:
        inputs.update(inputs.pop("image_inputs").arguments())
    logits = model(**inputs).logits[batch["supervised"]]
    loss_of = NumericLoss("ntil_soft", vocabulary=vocabulary, reduction="samples")
    result = loss_of(logits, batch["labels"], batch["spans"])
    result.loss.backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return result.loss.detach(), {name: value.clone() for name, value in found.items()}


def check_gradients(found, wanted):
    """Check that all gradients are equal to 1e-5 of the largest."""
    assert found.keys() == wanted.keys()
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-5 * largest, msg=name)
