"""Families of text: a tiny GPT-2 and a tiny T5 learn, and modules of both kinds of models."""

import json
import re

import pytest
import torch
import transformers
from PIL import Image
from sums import SUMS, sums_config
from tiny_models import TINY, examples_of, tiny_checkpoint, tiny_folder

from mm_numeric.data.collator import make_collator
from mm_numeric.evaluation.check_data.check import check_data
from mm_numeric.evaluation.check_data.html_page import write_check_page
from mm_numeric.evaluation.check_data.text import report_text
from mm_numeric.families.causal_lm import CausalLM
from mm_numeric.families.t5 import T5
from mm_numeric.inference.generate import generate, predict
from mm_numeric.runs.folder import last_checkpoint
from mm_numeric.training.run import train
from mm_numeric.training.setup import make_trainer, training_arguments

FAMILIES = {"causal_lm": CausalLM, "t5": T5}
each_family = pytest.mark.parametrize("name", FAMILIES)


def load(name):
    """Return the family of the tiny model."""
    return FAMILIES[name].load(tiny_folder(name), TINY)


@pytest.mark.slow
@each_family
def test_answers_do_not_depend_on_the_batch(tmp_path, name):
    """GPT-2 counts positions from the left, padding or not."""
    examples, family = examples_of(sums_config(tmp_path, name)), load(name)
    model = family.load_model(tiny_folder(name), TINY).eval()
    together = [found.text for found in generate(model, family, examples, 6)]
    assert together == [next(generate(model, family, [example], 6)).text for example in examples]
    assert len(set(together)) > 2 or name == "t5"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps"), [("causal_lm", 30), ("t5", 40)])
def test_eight_sums_are_learnt_by_heart(tmp_path, name, steps):
    train(sums_config(tmp_path, name, objective="ntil", max_steps=steps, learning_rate=3.0e-3))
    first, *_, last = map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    assert all(part > 0 for part in first["components"].values())
    assert last["loss"] < 0.1
    out = tmp_path / "p.jsonl"
    assert predict(tmp_path / "run", None, out, batch_size=3, trust_remote_code=True) == 8
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["text"] for line in lines] == list(SUMS.values())
    assert {(line["image"], line["frame"]) for line in lines} == {(None, None)}


@pytest.mark.slow
@each_family
def test_a_run_resumes_from_its_checkpoint(tmp_path, name):
    config, family = sums_config(tmp_path, name, max_steps=2, save_steps=1), load(name)
    folder = train(config)
    args = training_arguments(config)
    source, collator = str(tmp_path / "run/init"), make_collator(config, family)
    trainer = make_trainer(config, args, examples_of(config), collator, source)
    trainer.load_weights(last_checkpoint(tmp_path / "run"))
    trained = family.load_model(str(folder), TINY).state_dict()
    assert all(torch.equal(trained[k], v.cpu()) for k, v in trainer.model.state_dict().items())


@each_family
def test_check_data_reads_rows_without_images(tmp_path, name):
    config = sums_config(tmp_path, name)
    report = check_data(config)
    assert report.ready
    assert [source.ceiling for source in report.sources] == [{"exact": 1.0}] * 2
    text = report_text(report)
    assert text.endswith("ready")
    assert "image" not in text.replace("including the image", "")
    write_check_page(report, tmp_path / "page.html")
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    row = '{"id": "x", "image": "a.png", "sum": "3+4=", "answer": "7"}'
    (tmp_path / "rows.jsonl").write_text(row)
    (problem,) = check_data(config).sources[0].problems.values()
    assert "line 1: the row has an image, but model.family" in problem.messages[0]


def test_a_checkpoint_of_another_family_is_rejected():
    for family, folder, message in (
        (CausalLM, tiny_folder("t5"), "'t5', and causal_lm is for"),
        (CausalLM, tiny_checkpoint(), "type 'qwen2_vl', and causal"),
        (T5, tiny_folder("causal_lm"), "'gpt2', and T5 is for check"),
    ):
        with pytest.raises(ValueError, match=message):
            family.load(folder, TINY)


# Modules

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
SMALL_T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2,
            "num_heads": 2, "decoder_start_token_id": 0}  # fmt: skip
SMALL_MODELS = [
    transformers.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=64, tie_word_embeddings=False
    ),
    transformers.LlamaConfig(**SMALL),
    transformers.Qwen2Config(**SMALL, num_key_value_heads=2),
    transformers.GraniteConfig(**SMALL),
    transformers.Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=16),
    transformers.PhiConfig(**SMALL),
    transformers.GPTNeoXConfig(**SMALL),
    transformers.OPTConfig(**SMALL, ffn_dim=64, word_embed_proj_dim=32),
    transformers.T5Config(**SMALL_T5),
    transformers.T5Config(**SMALL_T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    transformers.MT5Config(**SMALL_T5),
    transformers.UMT5Config(**SMALL_T5),
    transformers.LongT5Config(**SMALL_T5, encoder_attention_type="transient-global"),
]


@pytest.mark.parametrize("config", SMALL_MODELS, ids=lambda config: config.model_type)
def test_every_parameter_is_in_one_part_and_every_linear_layer_is_a_lora_target(config):
    family = T5 if config.is_encoder_decoder else CausalLM
    assert family.supports(config)
    model = family.model_class.from_config(config)
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.clone())  # untied
    parts = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        (part,) = [
            own for own, pattern in family.module_patterns.items() if re.match(pattern, name)
        ]
        parts.setdefault(part, set()).add(parameter)
    assert parts["head"] == set(head.parameters())
    tables = {m.weight for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    if family is T5:  # the biases of relative positions belong to the blocks
        tables = set(model.shared.parameters())
    assert parts["embeddings"] == tables >= set(model.get_input_embeddings().parameters())
    assert parts["language"] == set(model.parameters()) - parts["embeddings"] - parts["head"]
    linear = {
        name for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | transformers.pytorch_utils.Conv1D)
        and module is not head
    }  # fmt: skip
    names = {name for name, _ in model.named_modules()}
    assert {name for name in names if re.fullmatch(family.lora_targets, name)} == linear
