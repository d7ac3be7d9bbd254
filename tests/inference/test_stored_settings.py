"""Checkpoints whose generation_config.json or weights would change answers, or make none."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import small_config
from transformers import GenerationConfig

from mm_numeric.cli import main as cli
from mm_numeric.inference.candidates import _PLAIN, KEPT_SETTINGS, PLAIN_SETTINGS, unused_settings
from mm_numeric.runs.folder import MODEL
from mm_numeric.training.run import train

STORED = {
    "suppress_tokens": list(range(40)),
    "begin_suppress_tokens": list(range(40)),
    "sequence_bias": [[[16], 90.0]],
    "bad_words_ids": [[16], [17], [18]],
    "stop_strings": [":", "1"],
    "repetition_penalty": 9.0,
    "no_repeat_ngram_size": 1,
    "encoder_repetition_penalty": 5.0,
    "exponential_decay_length_penalty": [1, 9.0],
    "forced_eos_token_id": 50,
    "guidance_scale": 4.0,
    "min_new_tokens": 9,
    "max_time": 1e-9,
    "num_beams": 3,
    "renormalize_logits": True,
    "remove_invalid_values": True,
    "return_dict_in_generate": True,
    "output_scores": True,
    "prompt_lookup_num_tokens": 3,
    "token_healing": True,
    "watermarking_config": {"bias": 90.0, "greenlist_ratio": 0.5},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    train(small_config(folder, "trainer.max_steps=2"))
    return folder / "run"


def copied(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


def answers(run, out, *more):
    assert cli.main(["predict", "--model", str(run), "--out", str(out), "--limit", "3", *more]) == 0
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return [(row["text"], row["reason"], row.get("decode")) for row in rows]


def test_every_field_of_a_generation_config_is_overridden_or_kept():
    fields = {n: v for n, v in GenerationConfig().to_dict().items() if not n.startswith("_")}
    assert fields.keys() == PLAIN_SETTINGS.keys() | (KEPT_SETTINGS & fields.keys())
    assert _PLAIN.keys() <= PLAIN_SETTINGS.keys() | KEPT_SETTINGS
    plain = GenerationConfig(**PLAIN_SETTINGS)
    assert {name: getattr(plain, name) for name in PLAIN_SETTINGS} == PLAIN_SETTINGS
    assert unused_settings(plain) == unused_settings(GenerationConfig()) == []
    assert unused_settings(GenerationConfig(do_sample=True, top_p=0.9, temperature=0.7)) == []
    found = unused_settings(GenerationConfig(suppress_tokens=[3], repetition_penalty=1.05))
    assert found == ["repetition_penalty", "suppress_tokens"]


@pytest.mark.slow
def test_settings_of_a_checkpoint_change_no_answer_and_are_named(run, tmp_path, capsys):
    wanted = {
        rule: answers(run, tmp_path / f"{rule}.jsonl", "--decode", rule)
        for rule in ("greedy", "median")
    }
    capsys.readouterr()
    assert "not used" not in capsys.readouterr().err
    own = copied(run, tmp_path)
    path = own / MODEL / "generation_config.json"
    before = json.loads(path.read_text())
    names = sorted(STORED)
    for i, some in enumerate((names[::2], names[1::2])):
        path.write_text(json.dumps(before | {name: STORED[name] for name in some}))
        for rule, expected in wanted.items():
            assert answers(own, tmp_path / f"{rule}{i}.jsonl", "--decode", rule) == expected
            error = capsys.readouterr().err
            assert f"generation_config.json sets {', '.join(some)}, which are not used" in error


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["greedy", "median", "mbr"])
def test_weights_that_are_no_numbers_are_an_error(run, tmp_path, capsys, rule):
    own = copied(run, tmp_path)
    (path,) = (own / MODEL).glob("*.safetensors")
    weights = load_file(path)
    name = next(key for key in weights if "layers.0" in key and key.endswith("q_proj.weight"))
    weights[name][:] = torch.nan
    save_file(weights, path, metadata={"format": "pt"})
    samples = ["--samples", "4"] if rule == "mbr" else []
    words = ["predict", "--model", str(own), "--out", str(tmp_path / "p.jsonl"), "--decode", rule]
    assert cli.main([*words, *samples]) == 2
    error = capsys.readouterr().err
    assert "the logits of the model are nan: its weights are not finite" in error
    assert "Traceback" not in error
