"""The example that trains a model on rewards for its own answers, with TRL's GRPOTrainer."""

import shutil

import pytest
from grpo import make_trainer
from tiny_models import small_config, tiny_folder
from transformers import AutoModelForImageTextToText

from mm_numeric.config.reader import read_config
from mm_numeric.data.framing import load_framed_image
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.training.run import train

SETTINGS = {"num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 2,
            "logging_steps": 1, "learning_rate": 1e-3, "save_strategy": "no", "report_to": [],
            "use_cpu": True, "bf16": False, "gradient_checkpointing": False}  # fmt: skip


@pytest.mark.slow
def test_a_run_is_trained_further_by_rewards(tmp_path):
    warm = train(small_config(tmp_path / "warm", "trainer.max_steps=40", "objective=ce",
                              "trainer.save_steps=40", "trainer.per_device_train_batch_size=12",
                              "evaluate=null", "trainer.learning_rate=4.0e-3"))  # fmt: skip
    config = small_config(tmp_path, f"model.name={warm}", "predict.max_new_tokens=6")
    trainer = make_trainer(config, {"time": 1.0, "format": 0.5}, **SETTINGS)
    before = trainer.model.get_output_embeddings().weight.clone()
    trainer.train()
    for line in trainer.state.log_history[:2]:
        parts = line["rewards/time/mean"], line["rewards/format/mean"]
        assert line["reward"] == pytest.approx(parts[0] + 0.5 * parts[1])
        assert line["reward"] > 0.1
        assert 0 <= line["unparseable/time/all"] < 1
    trainer.save_model()
    saved = AutoModelForImageTextToText.from_pretrained(tmp_path / "run")
    assert (saved.get_output_embeddings().weight != before).any()
    Qwen2VL.load(str(tmp_path / "run"), config.model)


def test_prompts_are_those_of_the_family(tmp_path):
    """With one image, several, and none, where answers have no frames."""
    text_only = shutil.copytree(tiny_folder("causal_lm"), tmp_path / "text_only")
    template = "{% for turn in messages %}Q: {{ turn.content }} A: {% endfor %}"
    (text_only / "chat_template.jinja").write_text(template)
    qwen = tiny_folder("qwen2_vl")
    for base, model, rewarded, own in (
        ("clock_tiny", qwen, "time", ()),
        ("temporal_spans_tiny", qwen, "iou", ("task.max_frames=3",)),
        ("arithmetic_tiny", text_only, "correct", ("model.family=causal_lm",)),
    ):
        config = read_config(base, [
            f"trainer.output_dir={tmp_path / 'run'}", f"data.cache={tmp_path}", *own,
            "data.train.synthetic.rows=2", f"model.name={model}", "predict.max_new_tokens=4",
        ])  # fmt: skip
        trainer = make_trainer(config, {rewarded: 1.0}, **SETTINGS)
        trainer.state.max_steps = 1
        trainer.model.train()
        inputs = [trainer.train_dataset[i] for i in (0, 0, 0, 0, 1, 1, 1, 1)]
        batch = trainer._generate_and_score_completions(inputs)
        pairs = zip(batch["prompt_ids"], batch["prompt_mask"], strict=True)
        found = [ids[mask > 0].tolist() for ids, mask in pairs]
        family, examples = trainer.train_dataset.format["format_kwargs"]["transform"].args[1:]
        shown = [load_framed_image(family, example)[0] for example in examples]
        prompts = family.prompts([example.prompt for example in examples], shown)
        assert found == [prompts.ids[i // 4] for i in range(8)]
