"""Checkpoints in the original LLaVA layout are loaded completely, or rejected."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import TINY
from transformers import CLIPConfig, CLIPModel, LlavaConfig

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.llava import Llava
from mm_numeric.families.llava_layout import OriginalLayout
from mm_numeric.families.yi_vl import YiVL

TYPES = {Llava: "mlp2x_gelu", YiVL: "mlp2x_gelu_Norm"}
LAYERS = {
    Llava: {"linear_1": 0, "linear_2": 2},
    YiVL: {"linear_1": 0, "norm_1": 1, "linear_2": 3, "norm_2": 4},
}
LANGUAGE = {  # what a flat config.json has of LLaMA's settings, next to those of RoPE
    *("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_act"),
    *("rms_norm_eps", "bos_token_id", "eos_token_id", "pad_token_id"),
}
TOWER = "vit/clip-vit-H-14-448"
both = pytest.mark.parametrize("family_class", [Llava, YiVL])


def original_name(name, layers):
    """Return a parameter's name in the LLaVA code."""
    for layer, number in layers.items():
        name = name.replace(
            f"model.multi_modal_projector.{layer}.", f"model.mm_projector.{number}."
        )
    name = name.replace("model.language_model.", "model.")
    return name.replace("model.vision_tower.", "model.vision_tower.vision_tower.vision_model.")


def a_model(family_class, folder):
    """Create a tiny model whose language model differs from LLaMA's defaults."""
    family_class.make_tiny(folder, seed=0)
    config = LlavaConfig.from_pretrained(folder)
    config.text_config.rope_parameters["rope_theta"] = 5000.0
    config.text_config.rms_norm_eps = 1e-3
    config.text_config.max_position_embeddings = 1500
    torch.manual_seed(0)
    return family_class.model_class(config).eval()


def original(family_class, model, tiny, folder, tower=TOWER):
    """Save a model in the layout of the LLaVA code.

    Args:
        family_class: Its family.
        model: The model.
        tiny: A folder with its tokenizer and its image processor.
        folder: Where to; the vision tower goes into a folder inside.
        tower: What its config.json names as the vision tower.
    """
    shutil.copytree(tiny, folder)
    text = model.config.text_config
    config = {
        "architectures": ["LlavaLlamaForCausalLM"],
        "model_type": "llava",
        "mm_vision_tower": f"./{tower}",
        "mm_hidden_size": 96,
        "mm_projector_type": TYPES[family_class],
        "mm_use_im_start_end": False,
        "mm_vision_select_feature": "patch",
        "mm_vision_select_layer": -2,
        "image_aspect_ratio": "pad",
        "rope_theta": 5000.0,
        "rope_scaling": None,
        "torch_dtype": "bfloat16",
        **{name: value for name, value in text.to_dict().items() if name in LANGUAGE},
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    weights = {
        original_name(name, LAYERS[family_class]): weight.clone()
        for name, weight in model.state_dict().items()
    }
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(12)
    save_file(weights, folder / "model.safetensors")
    (folder / tower).mkdir(parents=True)
    model.config.vision_config.save_pretrained(folder / tower)
    shutil.move(folder / "preprocessor_config.json", folder / tower)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model of each family, and its folder in the original layout."""
    found = {}
    for family_class in (Llava, YiVL):
        folder = tmp_path_factory.mktemp("layout")
        model = a_model(family_class, folder / "tiny")
        original(family_class, model, folder / "tiny", folder / "original")
        found[family_class] = model, folder / "original"
    return found


def copied(made, family_class, tmp_path):
    """Return the model, a copy of its folder, and its weights by their original names."""
    model, source = made[family_class]
    shutil.copytree(source, tmp_path / "copy")
    return model, tmp_path / "copy", load_file(tmp_path / "copy" / "model.safetensors")


def in_two_files(folder, weights):
    """Write weights in two files with an index."""
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    table = {}
    for i, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-0000{i}-of-00002.safetensors"
        save_file({name: weights[name] for name in part}, folder / file)
        table |= dict.fromkeys(part, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": table}), "utf-8")


def tower_apart(folder, weights, model, whole):
    """Move the vision tower into its own folder, alone or with the text half of CLIP."""
    tower = model.model.vision_tower
    if whole:
        vision, text = tower.config.to_dict(), {"hidden_size": 8, "num_hidden_layers": 1}
        tower = CLIPModel(CLIPConfig(vision_config=vision, text_config={**text, "vocab_size": 9}))
        tower.vision_model.load_state_dict(model.model.vision_tower.state_dict())
    tower.save_pretrained(folder / TOWER)
    inside = [name for name in weights if name.startswith("model.vision_tower.")]
    for name in inside:
        del weights[name]


def check_equal(family_class, model, folder, image):
    """Check that a checkpoint gives exactly the logits of a model, and return the loaded model."""
    family = family_class.load(str(folder), TINY)
    loaded = family.load_model(str(folder), TINY).eval()
    assert type(loaded) is family_class.model_class
    inputs = family.prompts(["Where is 12?"], [image])
    ids = torch.tensor(inputs.ids)
    placed = ids.masked_fill(ids == family.image_id, model.config.image_token_id)
    with torch.no_grad():
        expected = model(input_ids=placed, **inputs.images).logits
        found = loaded(input_ids=ids, **inputs.images).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert expected.std() > 0.1
    return family, loaded


@pytest.fixture(scope="module")
def image():
    """An image whose features all differ."""
    from PIL import Image

    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 255, (60, 80, 3), generator=generator, dtype=torch.uint8)
    return Image.fromarray(noise.numpy())


@pytest.mark.slow
@both
@pytest.mark.parametrize(
    ("apart", "sharded"), [("inside", True), ("alone", False), ("a whole CLIP", True)]
)
def test_a_checkpoint_in_the_original_layout(made, tmp_path, image, family_class, sharded, apart):
    model, folder, weights = copied(made, family_class, tmp_path)
    if apart != "inside":
        tower_apart(folder, weights, model, whole=apart == "a whole CLIP")
        save_file(weights, folder / "model.safetensors")
    if sharded:
        in_two_files(folder, weights)
    check_equal(family_class, model, folder, image)


@pytest.mark.slow
@both
def test_what_was_loaded_is_saved_as_transformers_does(made, tmp_path, image, family_class):
    model, folder = made[family_class]
    family, loaded = check_equal(family_class, model, folder, image)
    settings = family_class.load_config(str(folder), TINY)
    assert settings.get_text_config().max_position_embeddings == 1500
    assert family.num_image_features(family.images([image] * 2), settings) == 2 * 16
    loaded.save_pretrained(tmp_path)
    family.save(tmp_path)
    assert OriginalLayout.find(str(tmp_path), "main") is None
    again, _ = check_equal(family_class, model, tmp_path, image)
    first, second = (f.prompts(["Where?"], [image]) for f in (family, again))
    assert first.ids == second.ids
    assert torch.equal(first.images["pixel_values"], second.images["pixel_values"])


def test_the_original_layout_asks_as_it_was_trained(made, tmp_path):
    model, folder = made[Llava]
    tiny = Llava.load(str(folder), TINY)
    prompt = tiny.prompt_text("Where?", True)
    assert prompt == (
        "A chat between a curious user and an artificial intelligence assistant. The assistant "
        "gives helpful, detailed, and polite answers to the user's questions. "
        "USER: <image>\nWhere? ASSISTANT:"
    )
    model.save_pretrained(tmp_path)
    tiny.save(tmp_path)  # a run keeps its prompts
    again = Llava.load(str(tmp_path), TINY)
    assert again.prompt_text("Where?", True) == prompt
    (tmp_path / "chat_template.jinja").unlink()  # as in runs of earlier versions
    old = Llava.load(str(tmp_path), TINY)
    assert old.prompt_text("Where?", True) == "USER: <image>\nWhere? ASSISTANT:"


def test_a_tokenizer_without_an_image_token_needs_no_new_embedding(made):
    model, folder = made[YiVL]
    family = YiVL.load(str(folder), TINY)
    loaded = family.load_model(str(folder), TINY)
    assert family.tokenizer.convert_ids_to_tokens(family.image_id) == "<unk>"
    assert loaded.get_input_embeddings().weight.shape == model.get_input_embeddings().weight.shape


def test_the_numeric_type_is_that_of_the_checkpoint_or_as_asked(made):
    _, folder = made[YiVL]
    for dtype, found in (("auto", torch.bfloat16), ("float16", torch.float16)):
        settings = ModelConfig(name="tiny", dtype=dtype)
        loaded = YiVL.load(str(folder), settings).load_model(str(folder), settings)
        assert {weight.dtype for weight in loaded.parameters()} == {found}


# Errors


def edited(change):
    """Return a change of a folder that edits its weights."""

    def edit(folder):
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")

    return edit


def without_safetensors(folder):
    shutil.move(folder / "model.safetensors", folder / "pytorch_model.bin")


def without_a_tower(folder):
    shutil.rmtree(folder / "vit")


def twice(weights):
    weights["model.vision_tower.vision_tower.post_layernorm.bias"] = torch.zeros(96)


REJECTED = {
    r"lacks 1 weights \(model\.multi_modal_projector\.norm_2\.bias\)": edited(
        lambda weights: weights.pop("model.mm_projector.4.bias")
    ),
    r"lacks 9 weights \(model\.language_model\.layers\.1\..* \.\.\.\); set the folder": edited(
        lambda weights: [
            weights.pop(name) for name in list(weights) if name.startswith("model.layers.1.")
        ]
    ),
    r"has unknown 1 weights \(model\.image_newline\)": edited(
        lambda weights: weights.update({"model.image_newline": torch.zeros(96)})
    ),
    r"has unknown 1 weights \(model\.mm_projector\.2\.weight\)": edited(
        lambda weights: weights.update({"model.mm_projector.2.weight": torch.zeros(96)})
    ),
    r"has in another shape 1 weights \(lm_head\.weight\)": edited(
        lambda weights: weights.update({"lm_head.weight": torch.zeros(3, 96)})
    ),
    r"has more than once 1 weights \(model\.vision_tower\.post_layernorm\.bias\)": edited(twice),
    r"has no model\.safetensors; convert its weights to safetensors": without_safetensors,
    r"is './vit/clip-vit-H-14-448', neither a folder nor": without_a_tower,
}


@pytest.mark.parametrize("message", REJECTED)
def test_a_checkpoint_that_is_not_whole_is_rejected(made, tmp_path, message):
    _, folder, _ = copied(made, YiVL, tmp_path)
    REJECTED[message](folder)
    with pytest.raises(ValueError, match=message) as error:
        YiVL.load(str(folder), TINY).load_model(str(folder), TINY)
    assert "\n" not in str(error.value)
    assert not re.search(r"\. [A-Z]", str(error.value))  # one sentence


@both
def test_another_projector_is_rejected(made, family_class):
    other = YiVL if family_class is Llava else Llava
    folder = str(made[other][1])
    family = family_class.load(folder, ModelConfig(name="tiny", coordinates="relative_1000"))
    with pytest.raises(ValueError, match=f"of type '{TYPES[other]}', and model.family one of type"):
        family.load_model(folder, TINY)
