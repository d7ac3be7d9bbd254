"""Parts of a model: what a config says of them is what is trained, and how fast."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import TINY, small_config, tiny_checkpoint, tiny_family, tiny_model

from mm_numeric.config.modules import ModulesConfig, ModuleSettings, read_modules
from mm_numeric.data.collator import make_collator
from mm_numeric.families.t5 import T5
from mm_numeric.models.parameter_groups import ModelModules, table_text
from mm_numeric.training.run import train
from mm_numeric.training.setup import make_trainer, training_arguments


def parts_of(**settings):
    return ModelModules(tiny_family(), read_modules(settings, "test, modules"), 1e-3, "test")


def changed(config) -> set[str]:
    """Train, and return the parts that a weight has changed in."""
    train(config)
    before = load_file(f"{tiny_checkpoint()}/model.safetensors")
    after = load_file(config.output_dir / "model" / "model.safetensors")
    assert before.keys() == after.keys()
    prefix = {"visual.": "model.visual.", "model.": "model.language_model."}  # of the hub's names
    found = set()
    for name in before:
        start = name.partition(".")[0] + "."
        if not torch.equal(before[name], after[name]):
            found.add(parts_of().module_of(prefix.get(start, start) + name.removeprefix(start)))
    return found


@pytest.mark.parametrize("settings", [{"projector": "frozen"}, {"language": "adapted"}])
def test_a_frozen_projector_that_looks_untrained_is_reported(logged, settings):
    model, biases = copy.deepcopy(tiny_model()), []
    modules = parts_of(**settings)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") and modules.module_of(name) == "projector":
            torch.nn.init.zeros_(parameter)
            biases.append(parameter)
    parts_of().check(model)
    assert not logged.getvalue()
    modules.check(model)
    assert "modules.projector: it is frozen, and its weights look untrained" in logged.getvalue()
    logged.truncate(0)
    torch.nn.init.ones_(biases[-1])
    modules.check(model)
    assert "untrained" not in logged.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "trained"),
    [
        ("{}", {"vision", "projector", "language", "embeddings"}),
        ("{vision: frozen, embeddings: frozen, head: frozen}", {"projector", "language"}),
        ("{language: frozen, projector: {learning_rate: 0.0}}", {"vision", "embeddings"}),
    ],
)
def test_only_the_parts_that_are_trained_change(tmp_path, setting, trained):
    config = small_config(
        tmp_path,
        f"model.name={tiny_checkpoint()}",
        f"modules={setting}",
        "trainer.max_steps=2",
        "trainer.save_strategy='no'",
    )
    assert changed(config) == trained
    table = json.loads((config.output_dir / "run.json").read_text())["modules"]
    assert table["head"]["same_as"] == "embeddings"
    assert sum(row["parameters"] for row in table.values()) == sum(
        p.numel() for p in tiny_model().parameters()
    )
    frozen = {part for part in table if table[part]["how"] == "frozen"}
    assert all(table[part]["trained"] == 0 for part in frozen)
    assert frozen.isdisjoint(trained)


def test_each_part_has_its_rate_and_weight_decay_is_as_the_trainer_s(tmp_path):
    config = small_config(
        tmp_path,
        "modules.vision.learning_rate=1.0e-5",
        "modules.projector=frozen",
        "trainer.weight_decay=0.1",
    )
    family, model = tiny_family(), tiny_checkpoint()
    trainer = make_trainer(
        config, training_arguments(config), [], make_collator(config, family), model
    )
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    decayed = set(trainer.get_decay_parameter_names(trainer.model))
    seen = set()
    for group in trainer.create_optimizer().param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            seen.add(name)
            part = trainer.modules.module_of(name)
            assert group["lr"] == (1e-5 if part == "vision" else 1e-3)
            assert group["weight_decay"] == (0.1 if name in decayed else 0)
    assert seen == {n for n in names.values() if trainer.modules.module_of(n) != "projector"}


def test_one_tensor_is_not_treated_in_two_ways():
    model = tiny_model()
    for settings, said in (
        ({"head": "frozen"}, "embeddings is trained and the head frozen"),
        ({"embeddings": {"learning_rate": 0.1}}, "embeddings is trained at 0.1 and the head train"),
        ({"embeddings": "adapted", "head": "adapted"}, "embeddings is adapted and the head adapt"),
    ):
        with pytest.raises(ValueError, match=f"head of this model are one tensor, .* the {said}"):
            parts_of(**settings).check(model)
    parts_of(embeddings="frozen", head="frozen").check(model)
    parts_of(embeddings={"learning_rate": 1e-3}).check(model)  # the same rate, once by name


@pytest.mark.slow
def test_settings_that_cannot_be_are_one_sentence(tmp_path):
    for setting, said in (
        ("modules.vison=frozen", r"vison.*vision"),
        (
            "modules.vision=freeze",
            r"modules\.vision: a module is trained, frozen, adapted, location_tokens, not 'freeze'",
        ),
        ("modules.vision=3", r"modules\.vision: expected settings \(how, learning_rate\), found 3"),
        (
            "modules.vision={how: frozen, learning_rate: 0.1}",
            "a frozen module has no learning_rate",
        ),
        ("modules.vision.learning_rate=-1.0", "at least 0, not -1"),
        ("modules.vision.learning_rate=1e-5", r"write 1\.0e-5"),
        ("lora.rank=4", "no module is adapted"),
        ("lora={rank: 0}", "no module is adapted"),
    ):
        with pytest.raises(ValueError, match=said):
            small_config(tmp_path, setting)
    with pytest.raises(ValueError, match="lora: rank must be at least 1, not 0"):
        small_config(tmp_path, "modules.language=adapted", "lora.rank=0")
    every = (
        "{vision: frozen, projector: frozen, language: frozen, embeddings: frozen, head: frozen}"
    )
    with pytest.raises(ValueError, match="modules: every module is frozen"):
        train(small_config(tmp_path, f"modules={every}", "trainer.max_steps=1"))
    with pytest.raises(
        ValueError, match=r"modules\.vision: T5 has no such module, only language, emb"
    ):
        ModelModules(object.__new__(T5), ModulesConfig(vision=ModuleSettings()), 1e-3, "test")
    config = small_config(
        tmp_path, "modules.vision.learning_rate=1.0e-5", "trainer.optim=galore_adamw"
    )
    trainer = make_trainer(
        config,
        training_arguments(config),
        [],
        make_collator(config, tiny_family()),
        tiny_checkpoint(),
    )
    with pytest.raises(ValueError, match=r"^trainer\.optim galore_adamw: .*install"):
        trainer.create_optimizer()  # GaLore is not installed where tests run
    trainer.optimizer_cls_and_kwargs = torch.optim.AdamW, {"params": []}
    with pytest.raises(ValueError, match=r"trainer\.optim galore_adamw makes its own groups"):
        trainer.create_optimizer()


def test_modules_without_settings_are_trained_or_frozen_if_another_is_adapted(tmp_path):
    parts = small_config(tmp_path, "modules.vision=frozen").modules
    assert [parts.of(p).how for p in ("vision", "language")] == ["frozen", "trained"]
    config = small_config(tmp_path, "modules.language=adapted")
    assert [config.modules.of(p).how for p in ("vision", "language")] == ["frozen", "adapted"]
    assert (config.lora.rank, config.lora.alpha) == (16, 32)
    assert small_config(tmp_path).lora is None


@pytest.mark.slow
def test_a_trained_part_without_a_gradient_ends_the_run(tmp_path, monkeypatch):
    steps = ("trainer.max_steps=1", "trainer.save_strategy='no'")
    load = type(tiny_family()).load_model

    def cut_off(self, source, settings):
        model = load(self, source, settings)
        model.model.visual.merger.register_forward_hook(lambda m, i, o: o.detach())
        return model

    monkeypatch.setattr(type(tiny_family()), "load_model", cut_off)
    with pytest.raises(
        ValueError, match=r"small|clock_tiny, modules\.vision: it is trained, but st"
    ):
        train(small_config(tmp_path / "a", *steps))
    seen = small_config(tmp_path / "b", *steps, "modules={vision: frozen, projector: frozen}")
    assert train(seen).is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("detached", [False, True])
def test_a_vision_tower_before_a_zero_projector_is_checked_later(tmp_path, monkeypatch, detached):
    load = type(tiny_family()).load_model

    def zero_projector(self, source, settings):
        model = load(self, source, settings)
        torch.nn.init.zeros_(model.model.visual.merger.mlp[2].weight)
        if detached:
            model.model.visual.merger.register_forward_pre_hook(lambda m, i: (i[0].detach(),))
        return model

    monkeypatch.setattr(type(tiny_family()), "load_model", zero_projector)
    settings = "trainer.max_steps=4", "trainer.save_strategy='no'", "trainer.warmup_steps=1"
    config = small_config(tmp_path, *settings)
    if not detached:
        assert train(config).is_dir()
        return
    with pytest.raises(
        ValueError, match=r"modules\.vision: it is trained, but step 3 left no grad"
    ):
        train(config)


class TextOnly:
    """Makes batches without their images."""

    def __init__(self, collate):
        self.collate = collate

    def __call__(self, examples):
        return self.collate([replace(example, image=None) for example in examples])


@pytest.mark.slow
@pytest.mark.parametrize(("most", "waiting"), [(3, ["vision", "projector"]), (2, [])])
def test_a_vision_tower_without_an_image_is_waited_for(
    tmp_path, monkeypatch, logged, most, waiting
):
    from mm_numeric.data.examples import load_examples
    from mm_numeric.training.run import fit

    monkeypatch.setattr("mm_numeric.training.callbacks.gradient_check._MOST_CHECKS", most)
    config = small_config(tmp_path, "trainer.max_steps=2", "trainer.save_strategy='no'")
    config.output_dir.mkdir(parents=True)
    examples = load_examples(
        config.task, config.data.train, tmp_path.parent / "cache", training=True
    )
    args = training_arguments(config)
    trainer = make_trainer(
        config, args, examples, make_collator(config, tiny_family()), tiny_checkpoint()
    )
    trainer.data_collator = TextOnly(trainer.data_collator)
    fit(trainer, None)
    assert trainer.gradient_check._waiting == waiting
    given_up = "modules.vision: not checked for a gradient, as the first 2 steps trained no image."
    assert (given_up in logged.getvalue()) == (not waiting)


def test_the_table_counts_what_is_trained():
    parts = parts_of(vision="frozen", projector={"learning_rate": 1e-4})
    model = tiny_model()
    parts.check(model)
    parts.freeze(model)
    lines = table_text(parts.table(model)).splitlines()
    assert lines[1].split()[-1] == "frozen"
    assert lines[2].endswith("trained, learning rate 0.0001")
    assert lines[5].endswith("the same tensor as embeddings")
    total, trained = lines[-1].split()[1:]
    assert total == f"{sum(p.numel() for p in model.parameters()):,}"
    assert trained == f"{sum(p.numel() for p in model.parameters() if p.requires_grad):,}"
    assert TINY.quantize is None
