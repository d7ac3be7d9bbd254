"""Exported models: the same texts from plain transformers and PEFT, without mm-numeric."""

import json
import re
import shutil
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import torch
from adapted_runs import BLIND, TASKS, adapted_config, run_of
from huggingface_hub import HfApi, ModelCard, RepoUrl
from PIL import Image, ImageOps
from processes import python
from result_files import section
from safetensors.torch import load_file
from synthetic_rows import rows_for
from tiny_models import tiny_folder
from transformers import Qwen2VLProcessor

from mm_numeric.cli.main import main
from mm_numeric.config.reader import read_config
from mm_numeric.data.examples import examples_to_answer
from mm_numeric.data.images import upright_rgb
from mm_numeric.data.training_set import TrainingRows
from mm_numeric.evaluation.score import score
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.inference.generate import generate, predict
from mm_numeric.models.adapters import has_adapters
from mm_numeric.models.export import _warn_of_other_prompt, export
from mm_numeric.models.loading import load_family, load_model
from mm_numeric.models.model_card import CardResults, model_card
from mm_numeric.models.precision import Precision
from mm_numeric.registry import FAMILIES
from mm_numeric.runs.folder import read_run
from mm_numeric.training.run import train

pytestmark = pytest.mark.slow

# Their projector is trained, not adapted, so that PEFT alone lacks it.
WITH_PROJECTOR = ("llava", "yi_vl", "qwen2_5_vl")
RUN_FACTS = {"steps": 3, "batch_rows": 4, "modules": {}, "task_version": 1, "python": "3",
             "versions": {}}  # fmt: skip
STEPS = {"causal_lm": 40, "t5": 25, "florence2": 25}
TASKS_OF = dict(zip((name for name in FAMILIES if name not in BLIND), cycle(TASKS)))
"""The task of each vision family, besides grounding, whose card is run; of Qwen2-VL all are."""
DORA = ("qwen2_vl", "t5", "yi_vl")

PLAIN = """
import json, re, shutil, sys
from importlib.util import find_spec
from pathlib import Path
import transformers
for own in [n for n in sys.modules if n.split(".")[0] == "mm_numeric"] + ["mm_numeric"]:
    sys.modules[own] = None  # cannot be imported
from peft import PeftModel
from transformers import pipeline

if find_spec("torchvision") is None:  # without their video processors, which need it
    for kind in ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "InternVL"):
        processor = getattr(transformers, f"{kind}Processor")
        processor.get_attributes = classmethod(lambda _: ["image_processor", "tokenizer"])


def answers(code, found, asked):
    # Execute the text of the card for each row, but what loads the model once.
    for image, prompt in asked["rows"]:
        if image:
            shutil.copy(image, "image.png")
        printed = []
        found["print"] = lambda *values: printed.append(values[-2:][0])  # the text, or the box
        exec(code.replace(json.dumps(asked["prompt"])[1:-1], json.dumps(prompt)[1:-1]), found)
        yield [printed[0], printed[1:]]


def program(card):
    (code,) = re.findall("```python\\n(.*?)```", card.read_text(encoding="utf-8"), re.DOTALL)
    return code


for card in sorted(Path().glob("*/README.md")):
    name, found = card.parent.name, {}
    facts = json.loads(Path(f"{name}.json").read_text())
    load, begin, ask = program(card).partition(facts["begin"])
    try:
        exec(load, found)
    except ImportError:
        facts["needs"] = "mm_numeric"
        Path(f"{name}.json").write_text(json.dumps(facts))
        continue
    merged = found["model"]
    facts["merged"] = list(answers(begin + ask, found, facts))
    for task, asked in facts["tasks"].items():
        loads, _, ask_task = program(Path(name, f"{task}.md")).partition(begin)
        assert loads.splitlines()[-2:] == load.splitlines()[-2:]
        asked["written"] = list(answers(begin + ask_task, {**found}, asked))
    if "base" in facts:
        base = type(merged).from_pretrained(facts["base"])
        base.generation_config = merged.generation_config
        found["model"] = PeftModel.from_pretrained(base, facts["adapters"]).eval()
        facts["adapted"] = list(answers(begin + ask, found, facts))
    if facts["rows"][0][0]:
        pipe = pipeline("image-text-to-text", model=merged, processor=found["processor"])
        image, text = found["image"], "<image>box" if name == "paligemma" else "box"
        if found["processor"].chat_template:
            content = [{"type": "image", "image": image}, {"type": "text", "text": "box"}]
            image, text = None, [{"role": "user", "content": content}]
        (piped,) = pipe(images=image, text=text, return_full_text=False)
        facts["piped"] = piped["generated_text"].strip()
        facts["decoded"] = found["processor"].decode(found["ids"], skip_special_tokens=True).strip()
    Path(f"{name}.json").write_text(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Train every family for a few steps, export it, and run its card with transformers alone."""
    folder = tmp_path_factory.mktemp("exported")
    for name in FAMILIES:
        projector = {"projector": "trained"} if name in WITH_PROJECTOR else {}
        config = adapted_config(
            folder / "runs" / name,
            name,
            {"language": "adapted", **projector},
            {"rank": 4, "dora": name in DORA},
            max_steps=STEPS.get(name, 3),
        )
        config = replace(config, predict=replace(config.predict, max_new_tokens=12))
        train(config)
        run = config.output_dir
        predict(run, None, run / "predictions.jsonl", trust_remote_code=True)
        export(run, folder / name, trust_remote_code=True)
        lines = (run / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
        different = {row["text"]: row for row in map(json.loads, lines)}
        rows = list(different.values())[:2]
        blind = name in BLIND
        facts = {
            "prompt": json.loads(lines[0])["prompt"],  # of the first training row
            "begin": "prompt = " if blind else "image = ",
            "rows": [[row["image"], row["prompt"]] for row in rows],
            "predicted": [[row["text"].strip(), row["parsed"]] for row in rows],
            "tasks": {} if blind else dict(other_tasks(folder / name, name)),
        }
        if name not in WITH_PROJECTOR:
            facts |= {"base": tiny_folder(name), "adapters": str(run / "model")}
        (folder / f"{name}.json").write_text(json.dumps(facts), encoding="utf-8")
    done = python("-c", PLAIN, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def other_tasks(folder, name):
    """Write the card TASK.md that an exported model would have after training on another task.

    Yields the task, and its prompt, its first row and the model's answer. A run for each would take
    long.
    """
    exported = adapted_config(folder, name, {})
    family = load_family(exported, str(folder))
    model = load_model(exported, family, str(folder)).eval()
    for task in tasks_of(name):
        config = adapted_config(folder, name, {}, task=task)
        facts = {**RUN_FACTS, **TrainingRows(config).metadata()}
        precision = Precision("float32", autocast=None)
        card = model_card(config, family, model, precision, facts, CardResults({}), name)
        (folder / f"{task}.md").write_text(card, encoding="utf-8")
        example, *_ = examples_to_answer(config, None)
        (answer,) = generate(model, family, [example], 12)
        rows = [[str(example.image.resolve()), example.prompt]]
        asked = {"prompt": example.prompt, "rows": rows, "predicted": answer.text.strip()}
        yield task, asked


def tasks_of(name):
    return [*TASKS] if name == "qwen2_vl" else [TASKS_OF[name]]


def facts_of(folder, name):
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "yi_vl"])
def test_the_program_of_the_card_writes_what_predict_writes(exported, name):
    facts = facts_of(exported, name)
    assert ("adapted" in facts) == (name not in WITH_PROJECTOR)
    for way in {"merged", "adapted"} & facts.keys():
        for (text, boxes), (wanted, parsed) in zip(facts[way], facts["predicted"], strict=True):
            assert text == wanted
            if parsed is not None and name not in BLIND:
                assert boxes[0] == pytest.approx(parsed["box"], abs=0.1)
    assert len({text for text, _ in facts["merged"]}) > 1
    if name not in BLIND:
        assert facts["piped"] == facts["decoded"]
        assert [*facts["tasks"]] == tasks_of(name)
    for asked in facts["tasks"].values():
        assert asked["written"][0][0] == asked["predicted"]
    settings = json.loads((exported / name / "generation_config.json").read_text())
    assert (settings["do_sample"], settings["max_new_tokens"]) == (False, 12)
    assert (exported / name / "frame.json").is_file()


def weights(model):
    """Return a model's own weights under their own names, without its adapters."""
    inside = re.compile(r"base_model\.model\.|\.base_layer")
    state = model.state_dict()
    return {inside.sub("", name): state[name] for name in state if ".lora_" not in name}


@pytest.mark.parametrize("name", FAMILIES)
def test_only_the_named_parts_change(exported, name):
    config = read_run(exported / "runs" / name / "run", trust_remote_code=True)
    assert has_adapters(config.output_dir / "model")
    family, model = run_of(config)
    before = weights(family.load_model(tiny_folder(name), config.model))
    after = weights(model)
    assert before.keys() == after.keys()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    trained = {re.match(family.module_patterns["projector"], key) is not None for key in changed}
    assert trained == ({True} if name in WITH_PROJECTOR else set())
    adapters = [n for n, p in model.named_parameters() if ".lora_" in n]
    layers = {n.removeprefix("base_model.model.").partition(".lora_")[0] for n in adapters}
    assert all(re.fullmatch(family.lora_targets, layer) for layer in layers)
    assert len(layers) >= 7
    assert len(adapters) == len(layers) * (3 if name in DORA else 2)
    ups = [p for n, p in model.named_parameters() if ".lora_B." in n]
    assert sum(bool(p.any()) for p in ups) == len(ups)  # all were trained


def test_yi_vl_says_what_it_needs(exported, monkeypatch):
    facts = facts_of(exported, "yi_vl")
    assert facts["needs"] == "mm_numeric"
    card = (exported / "yi_vl" / "README.md").read_text(encoding="utf-8")
    assert "needs mm-numeric (`pip install 'mm-numeric[train]'`): transformers has no class" in card
    (code,) = re.findall("```python\n(.*?)```", card, re.DOTALL)
    monkeypatch.chdir(exported)
    for (image, _), (wanted, _) in zip(facts["rows"], facts["predicted"], strict=True):
        shutil.copy(image, "image.png")
        found = {}
        exec(code, found)
        assert found["text"] == wanted
    for task, asked in facts["tasks"].items():
        card = (exported / "yi_vl" / f"{task}.md").read_text(encoding="utf-8")
        (ask,) = re.findall("```python\n.*?^(image = .*?)```", card, re.DOTALL | re.MULTILINE)
        shutil.copy(asked["rows"][0][0], "image.png")
        exec(ask, found)
        assert found["text"] == asked["predicted"]


def test_the_program_shows_transparent_pixels_as_training_does(exported, tmp_path, monkeypatch):
    card = (exported / "yi_vl" / "README.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^(image = .*?)^question = ", card, re.DOTALL | re.MULTILINE)
    pixels = np.random.default_rng(0).integers(0, 256, (30, 20, 4), dtype=np.uint8)
    monkeypatch.chdir(tmp_path)
    Image.fromarray(pixels).save("image.png")
    found = {"Image": Image, "ImageOps": ImageOps}
    exec(lines, found)
    assert found["image"].mode == "RGB"
    assert np.array_equal(found["image"], upright_rgb(Image.open("image.png")))


def test_the_card_says_what_the_model_is(tmp_path, capsys):
    config = adapted_config(tmp_path, "qwen2_vl", {"language": "adapted"}, {"rank": 4})
    train(config)
    run, out = config.output_dir, tmp_path / "out" / "model"
    predict(run, None, run / "predictions.jsonl")
    score(run / "predictions.jsonl")
    assert main(["export", str(run), "--out", str(out)]) == 0
    assert f"exported: {out}" in capsys.readouterr().out
    card = (out / "README.md").read_text(encoding="utf-8")
    for said in (
        "library_name: transformers",
        "name: grounding\n",
        "<|im_start|>user",
        "kind: smart",
        "format: ",
        "3 steps of 4 rows; 8 rows of",
        "language ",
        "adapted, learning rate 0.01",
        "rank: 4",
        "ce_weight: 1.0",
        "| accuracy_at_0.5 | ",
        'question = "box"\n',
        "8 rows, ",
        "peft: 0.",
    ):
        assert said in card, said
    assert re.search("fingerprint `[0-9a-f]{64}`", card)
    known = ModelCard(card).data
    assert (known.pipeline_tag, known.library_name) == ("image-text-to-text", "transformers")
    results = {result.metric_type: result.metric_value for result in known.eval_results}
    scored = section(run)["metrics"]
    assert results["accuracy_at_0.5"] == scored["accuracy_at_0.5"]["value"]
    assert not list(out.parent.glob("*.unfinished"))
    assert main(["export", str(run), "--out", str(out)]) == 2
    assert f"{out} exists; name a folder that does not" in capsys.readouterr().err
    (run / "run.json").unlink()
    assert main(["export", str(run), "--out", str(tmp_path / "other")]) == 2
    assert "is not finished; resume with" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("parts", [{"language": "adapted"}, {"vision": "frozen"}])
def test_the_dtype_of_the_weights_stays(tmp_path, parts):
    config = adapted_config(tmp_path, "qwen3_vl", parts, dtype="bfloat16", max_steps=1)
    train(config)
    export(config.output_dir, tmp_path / "out")
    kinds = {value.dtype for value in load_file(tmp_path / "out" / "model.safetensors").values()}
    assert kinds == {torch.bfloat16}
    if "language" in parts:
        assert read_run(config.output_dir).lora.rank == 16  # by default
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "Weights are bfloat16." in card
    assert "Not scored: " in card


def test_the_program_of_a_detector_prints_labels_with_boxes_in_pixels(tmp_path, monkeypatch):
    """The model has learnt an image, so that its answer has boxes."""
    rows = rows_for("detection", 1)
    config = read_config(
        "detection_tiny",
        [
            f"trainer.output_dir={tmp_path / 'run'}",
            f"data.cache={tmp_path / 'cache'}",
            f"data.train={rows}",
            f"data.test={rows}",
            "trainer.per_device_train_batch_size=1",
            "trainer.max_steps=40",
            "trainer.warmup_steps=5",
            "trainer.learning_rate=3.0e-3",
            "trainer.save_strategy='no'",
            "evaluate=null",
        ],
    )
    train(config)
    run = config.output_dir
    predict(run, None, run / "predictions.jsonl")
    export(run, tmp_path / "out")
    (code,) = re.findall("```python\n(.*?)```", (tmp_path / "out" / "README.md").read_text(), re.S)
    load, begin, ask = code.partition("image = ")
    parts = ["image_processor", "tokenizer"]  # the video processor needs torchvision
    monkeypatch.setattr(Qwen2VLProcessor, "get_attributes", classmethod(lambda _: parts))
    monkeypatch.chdir(tmp_path)
    found = {}
    exec(load, found)
    labels = []
    for row in map(json.loads, (run / "predictions.jsonl").open(encoding="utf-8")):
        printed = []
        found["print"] = lambda *values, to=printed: to.append(values)
        shutil.copy(row["image"], "image.png")
        exec((begin + ask).replace("circle, square", row["prompt"]), found)
        assert printed[0] == (row["text"].strip(),)
        wanted = row["parsed"] or []
        assert [label for label, *_ in printed[1:]] == [item["label"] for item in wanted]
        for (_, box, confidence), item in zip(printed[1:], wanted, strict=True):
            assert box == pytest.approx(item["box"])
            assert 0.2 < confidence <= 1
        labels += [label for label, *_ in printed[1:]]
    assert {*labels} >= {"circle"}


def test_the_program_computes_in_the_precision_of_the_training(tmp_path, monkeypatch):
    config = adapted_config(tmp_path, "llava", {}, max_steps=1, bf16=True)
    train(config)
    predict(config.output_dir, None, tmp_path / "predictions.jsonl", limit=1)
    (row,) = map(json.loads, (tmp_path / "predictions.jsonl").open(encoding="utf-8"))
    export(config.output_dir, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall("```python\n(.*?)```", card, re.DOTALL)
    assert "with torch.autocast(model.device.type, torch.bfloat16):  # as in training\n" in code
    monkeypatch.chdir(tmp_path)
    shutil.copy(row["image"], "image.png")
    found = {}
    exec(code, found)
    assert found["text"] == row["text"].strip()


class Instructed(Qwen2VL):
    """A family of a user's, whose prompts are changed in code; it has no ``name`` of its own."""

    def apply_template(self, turns, *, add_generation_prompt):
        turns = [{"role": "system", "content": "You read clocks."}, *turns]
        return super().apply_template(turns, add_generation_prompt=add_generation_prompt)


class Saved(Qwen2VL):
    """A family of a user's that changes the chat template."""

    @classmethod
    def load_tokenizer(cls, source, model):
        tokenizer = super().load_tokenizer(source, model)
        tokenizer.chat_template = "You read clocks. " + tokenizer.chat_template
        return tokenizer


def test_a_prompt_that_is_lost_in_the_export_is_a_warning(tmp_path, logged):
    config = adapted_config(tmp_path, "qwen2_vl", {}, max_steps=1)
    own = replace(config, model=replace(config.model, family=f"{__name__}:Instructed"))
    train(own)
    export(own.output_dir, tmp_path / "out", trust_remote_code=True)
    (warning,) = re.findall("the chat template in the export .*", logged.getvalue())
    assert re.search(r"writes '.*', and the model was trained with '.*You read clocks\.", warning)
    assert "`load_tokenizer` of the family Instructed, change `tokenizer.chat_template`" in warning


@pytest.mark.parametrize("name", [*FAMILIES, "own"])
def test_the_prompt_of_an_export_is_that_of_the_training(name, tmp_path, logged):
    shipped = "qwen2_vl" if name == "own" else name
    config = adapted_config(tmp_path, shipped, {})
    if name == "own":
        config = replace(config, model=replace(config.model, family=f"{__name__}:Saved"))
    family = load_family(config, tiny_folder(shipped))
    _warn_of_other_prompt(family, "What time is it?")
    assert logged.getvalue() == ""


def test_answers_that_were_not_measured_may_be_cut(tmp_path, logged):
    config = adapted_config(tmp_path, "causal_lm", {}, max_steps=1)
    config = replace(config, data=replace(config.data, stream=True))
    config = replace(config, predict=replace(config.predict, max_new_tokens=None))
    train(config)
    export(config.output_dir, tmp_path / "out", trust_remote_code=True)
    assert "the answers of the exported model at 20 tokens" in logged.getvalue()
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^prompt = .*3\+4=", card, re.MULTILINE)


def test_a_run_is_pushed_to_the_hub(tmp_path, capsys, monkeypatch):
    config = adapted_config(tmp_path, "paligemma", {"vision": "frozen"}, max_steps=1)
    train(config)
    run, uploaded = config.output_dir, {}
    assert main(["push", str(run), "me/boxes"]) == 2
    sentence = "me/boxes: HF_HUB_OFFLINE is set, so nothing can be uploaded; unset it, or run"
    assert sentence in capsys.readouterr().err
    assert main(["push", str(tmp_path), "me/boxes"]) == 2
    assert "contains no run" in capsys.readouterr().err
    assert main(["push", str(run), "me/b/c"]) == 2
    assert "me/b/c: the hub did not accept the upload (Repo id must be" in capsys.readouterr().err

    def upload(api, repo_id, folder_path, commit_message):
        files = {path.name: path.read_bytes() for path in folder_path.iterdir()}
        uploaded.update(repo=repo_id, files=files)

    def create(api, repo, private, exist_ok):
        assert (private, exist_ok) == (True, True)
        return RepoUrl(f"https://huggingface.co/{repo}")

    monkeypatch.setattr(HfApi, "create_repo", create)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    assert main(["push", str(run), "me/boxes", "--private"]) == 0
    assert "uploaded: https://huggingface.co/me/boxes" in capsys.readouterr().out
    names = {"README.md", "config.json", "model.safetensors", "processor_config.json"}
    assert names <= uploaded["files"].keys()
    assert b'from_pretrained("boxes")' in uploaded["files"]["README.md"]
    assert not list(run.glob("*.unfinished"))
