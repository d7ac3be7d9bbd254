# ruff: noqa: E501
"""What users do wrong, and the one error message that each mistake gets.

The list is the specification: a command, the files that it reads, and a part of its message.
"""

import re
import resource
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from cheap_lookups import KEPT
from PIL import Image

from mm_numeric.cli import main as cli
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.io.log import set_verbosity

CONFIG = """\
task: clock
data: {train: {path: rows.jsonl}, test: {path: rows.jsonl}}
model: {name: tiny, dtype: float32}
trainer: {output_dir: run, max_steps: 1, per_device_train_batch_size: 2, report_to: none}
"""
ROW = '{"id": "1", "image": "a.png", "time": "7:05"}\n'
BOX = '{"id": "1", "image": "a.png", "phrase": "cat", "box": %s}\n'
ANSWER = '{"id": "1", "text": "7:05", "target": "7:05"}\n'
OLD = "old"
"""Folder with a finished run, an unfinished one and a comparison."""


class Mistake(NamedTuple):
    """A command, a part of its message, and the file that is written before, if any."""

    command: str
    message: str
    content: str | bytes = ""
    file: str = ""


def config(old: str, new: str, message: str) -> Mistake:
    """Return the mistake of a config in which one text is replaced by another."""
    assert old in CONFIG
    return Mistake("check mine.yaml", message, CONFIG.replace(old, new, 1), "mine.yaml")


def override(text: str, message: str, command: str = "check") -> Mistake:
    """Return the mistake of a changed setting."""
    return Mistake(f"{command} mine.yaml {text}", message)


def rows(content: str | bytes, message: str, file: str = "rows.jsonl", task: str = "") -> Mistake:
    """Return the mistake of a file of training rows."""
    return Mistake(f"train mine.yaml data.train.path={file} {task}", message, content, file)


def answers(content: str | bytes, message: str, options: str = "", file: str = "p.jsonl"):
    """Return the mistake of a file of predictions."""
    return Mistake(f"score {file} {options}", message, content, file)


# fmt: off
COMMANDS = [
    Mistake("trian mine.yaml", "COMMAND: there is no command 'trian'. Did you mean 'train'?"),
    Mistake("train", "mm-numeric train: error: the following arguments are required: config\n"),
    Mistake("train mine.yaml --resumee", "arguments: --resumee (did you mean --resume?)"),
    Mistake("ls a=b", "unrecognized arguments: a=b"),
    Mistake("compare clock_tiny --engine rai", "--engine: there is no choice 'rai'. Did you mea"),
    Mistake("compare clock_tiny --seeds one", "argument --seeds: invalid int value: 'one'"),
    Mistake("compare clock_tiny --seeds 7", "compare.seeds: 7 is not one of [0, 1]."),
    Mistake("compare clock_tiny compare.metric=exct data.train.synthetic.rows=4 data.test.synthetic.rows=4", "compare.metric: there is no metric 'exct'. Did you mean 'exac"),
    Mistake("compare mine.yaml", "mine: no section `compare`; see `mm-numeric cp clock_tiny`."),
    Mistake("predict", "error: the following arguments are required: --model"),
    *(
        Mistake(f"predict --model run {o} 0", f"argument {o}: 0 is not a whole number of at least")
        for o in ("--batch-size", "--max-new-tokens", "--limit")
    ),
    Mistake("predict --model run --images x", "--images is the image folder of --data; add --data"),
    Mistake("predict --model run --decode beam", "--decode: there is no choice 'beam'. Known: gre"),
    Mistake("check-data mine.yaml --size 640", "argument --size: 640 is not a size such as 640x4"),
    Mistake("check-data mine.yaml --page .", "--page: . is a folder; name a file in it."),
    Mistake("prepare coc x.json --out y.jsonl", "there is no format 'coc'. Did you mean 'coco'?"),
    Mistake("prepare coco", "error: the following arguments are required: INPUT, --out"),
    Mistake("prepare coco rows.jsonl --out y.jsonl", "rows.jsonl: this format has files ending in"),
    Mistake("prepare coco x.json --out y.csv", "--out y.csv: the file name must end in .jsonl."),
    Mistake("prepare coco x.json --out y.jsonl", 'no list "images"', "[]", "x.json"),
    Mistake("prepare rows rows.jsonl --out rows.jsonl", "rows.jsonl is also an input; name another"),
    Mistake("cp clock_tyni x.yaml", "no config 'clock_tyni'. Did you mean 'clock_tiny'?"),
    Mistake("cp clock_tiny mine.yaml", "mine.yaml exists; name another file."),
    Mistake("cp clock_tiny .", ". exists; name another file."),
    Mistake("cp clock_tiny no/such/x.yaml", "no/such: there is no such folder."),
    Mistake("check", "name a config, or a setting with --explain."),
    Mistake("check mine.yaml --explain x", "--explain needs no config; remove mine.yaml."),
    Mistake("check mine.yaml trainer.max_steps", "max_steps: write an override as name.of.setting"),
    Mistake("check mine.yaml trainer.max_steps 5", "steps: write an override as name.of.setting=v"),
    Mistake("score p.jsonl --ties averaged", "--ties requires --protocol coco_ap."),
    Mistake("score p.jsonl --areas small", "argument --areas: small is not a range such as small="),
    Mistake("score p.jsonl --truth gt.zip", "p.jsonl: --truth is for detections, which are text"),
    Mistake("score r.zip --truth gt.zip --task clock", "--task is for a .jsonl file of answers, or for"),
    Mistake("score r.zip --truth gt.zip --ties averaged", "--ties requires --protocol coco_ap."),
    *(
        Mistake(f"score {words}", "files of other tools require --truth.")
        for words in ("p.zip", "p.json --protocol coco_ap")
    ),
    Mistake("score p.jsonl --lines box", "--lines requires --truth, the true shapes."),
]
PATHS = [
    Mistake("check mien.yaml", "mien.yaml: there is no such file. Did you mean 'mine.yaml'? Shipp"),
    Mistake("check none/clock_tiny.yaml", "no such file. Did you mean 'clock_tiny'? Shipped"),
    Mistake("check clock_tyni", "no config 'clock_tyni'. Did you mean 'clock_tiny'?"),
    Mistake("check mine", "mine: there is no config 'mine'. Did you mean 'mine.yaml'?"),
    Mistake("check .", ".: a folder, not a config, which is a YAML file."),
    Mistake(f"train {OLD}/run", f"a folder, not a config, which is a YAML file; name {OLD}/run/conf"),
    Mistake("check rows.jsonl", "A config is one YAML file, not a file of rows.", 2 * ROW, "rows.jsonl"),
    Mistake("check a.png", "a.png: not UTF-8 (it is not a text file)"),
    override("data.train.path=rowz.jsonl", "rowz.jsonl: there is no such file.", "train"),
    override("data.train.path=.", ".: rows are read from .jsonl, .json, .csv or .tsv, not a fold", "train"),
    override("data.train.path=r.parquet", "r.parquet: rows are read from .jsonl, .json, .csv or ", "train"),
    override("""'data.train.path="*.nothing"'""", "*.nothing: no file matches this pattern.", "train"),
    override("data.train.path=*.jsonl", "data.train.path=*.jsonl, line 1: expected alphabetic or "),
    override("data.train.images=nowhere", "rows.jsonl, line 1: there is no image nowhere/a.png; set data.train.images to the folder of the", "train"),
    override("data.train.answers=no.jsonl", "no.jsonl: there is no such file.", "train"),
    override("trainer.output_dir=mine.yaml", "mine.yaml is not empty and contains no run. Cho", "train"),
    override("trainer.output_dir=.", ". is not empty and contains no run. Choose another", "train"),
    override("trainer.deepspeed=none.json", "trainer.deepspeed: there is no file none.json. What"),
    Mistake("predict --model nowhere", "nowhere contains no run; use the output_dir of `mm-numeric"),
    Mistake("predict --model mine.yaml", "mine.yaml contains no run; use the output_dir of `mm-numeric train`, or add --endpoint"),
    Mistake(f"predict --model {OLD}/run --data {OLD}/test.jsonl --out .", "--out: . is a folder; name a file in it."),
    Mistake(f"predict --model {OLD}/run --data {OLD}/test.jsonl --out y.csv", "--out y.csv: the file name must end in .jsonl."),
    Mistake(f"predict --model {OLD}/run --data no.jsonl --out p.jsonl", "no.jsonl: there is no such file."),
    Mistake("export nowhere --out x", "nowhere contains no run; use the output_dir of `mm-numeric t"),
    Mistake(f"export {OLD}/run --out a.png", "a.png exists; name a folder that does not, or delete"),
    Mistake("report none", "none contains neither summary.json of a comparison nor config.yaml"),
    Mistake("score none.jsonl", "none.jsonl: there is no such file."),
    Mistake("score a.png", "a.png: rows are read from .jsonl, .json, .csv or .tsv, not '.png'."),
    Mistake("score r.zip --truth gt.zip", "gt.zip: there is no such file."),
    Mistake("score r.jsonl --protocol coco_ap", "r.jsonl: there is no such file."),
]
YAML = [
    config("model:", "  model:", "mine.yaml, line 3: expected <block end>, but found '<block mappi"),
    config("task: clock\n", "task: clock\n  name: x\n", "line 2: mapping values are not allowed here."),
    config("trainer: {", "trainer:\n\t{", "line 5: found character '\\t' that cannot start any token. I"),
    config("float32}", "float32", "line 4: expected ',' or '}', but got ':'. A bracket or brace may n"),
    config("clock", '"clock', "line 5: found unexpected end of stream. A quote is not closed."),
    config("clock", "@clock", "line 1: found character '@' that cannot start any token. Put the text"),
    config("{name: tiny", "{name:tiny", "model: there is no setting 'name:tiny'. Did you mean 'name'?"),
    config("task: clock", "task: clock\ntask: clock", "mine.yaml, line 2: the key 'task' appears twi"),
    config("model", "modle", "mine.yaml: there is no setting 'modle'. Did you mean"),
    config("model: {name: tiny, dtype: float32}\n", "", "mine.yaml: the setting 'model' is missing."),
    config(CONFIG, "", "mine.yaml: expected settings as `key: value`, found an empty file."),
    config(CONFIG, "- task", "mine.yaml: expected settings as `key: value`, found ['task']."),
    Mistake("check mine.yaml", "mine.yaml: not UTF-8 (it is UTF-16); save it as UTF-8.",
            CONFIG.encode("utf-16"), "mine.yaml"),
    Mistake("check mine.yaml", "mine.yaml: not UTF-8 (byte 0xe4, as in Latin-1); save it as UTF-8.",
            b"# Z\xe4hler\n", "mine.yaml"),
]
SETTINGS = [
    override("model.nme=tiny", "mine.yaml, model: there is no setting 'nme'. Did you mean 'name'?"),
    override("images=a", "there is no setting 'images'. Known: compare, data, distil, evaluate, lora, model, modules, objective, plugins, predict, task, trainer. Did you mean data.train.images or data.test.images?\n"),
    override("data.images=a", "image_cache, largest_image, max_tokens, on_bad_image, padding_free, shuffle_rows, stream, test, too_long, train, vision_cache. Did you mean data.train.images or data.test.images?\n"),
    override("data.val.images=a", "there is no setting 'val'. Known: augment, cache, image_cache, largest_image, max_tokens, on_bad_image, padding_free, shuffle_rows, stream, test, too_long, train, vision_cache. Did you mean data.train.images or"),
    override("output_dir=a", "predict, task, trainer. Did you mean trainer.output_dir or compare.output_dir?\n"),
    override("trainer.lerning_rate=1.0", "TrainingArguments 'lerning_rate'. Did you mean 'learning_"),
    override("trainer.learning_rate=1e-5", "'1e-5' is not a number. YAML reads 1e-5 as text: write "),
    override("trainer.learning_rate=fast", "mine.yaml, trainer.learning_rate: 'fast' is not a num"),
    override("trainer.learning_rate=-1.0", "trainer.learning_rate must be at least 0, not -1.0."),
    override("trainer.num_train_epochs=-1", "trainer.num_train_epochs must be at least 0, not -1."),
    override("trainer.max_steps=0", "trainer.max_steps is 0, so that epochs are trained instead; remove it, o"),
    override("trainer.max_steps=1.5", "mine.yaml, trainer.max_steps: 1.5 is not a whole number."),
    override("trainer.bf16=yess", "mine.yaml, trainer.bf16: 'yess' is not true or false."),
    override("trainer.eval_strategy=steps", "trainer.eval_strategy: only 'no' can be used here, for"),
    override("trainer.deepspeed=zero9", "there is no DeepSpeed setting 'zero9'. Did you mean 'zero3'"),
    override("trainer.output_dir=", "mine.yaml, trainer.output_dir: set the folder of the run."),
    override("trainer.optim=adamx", "mine, trainer.optim: adamx is not a valid Optimiz", "train"),
    override("trainer.report_to=wandbb", "mine, trainer.report_to: 'wandbb' is not available", "train"),
    override("trainer.push_to_hub=true", "trainer.push_to_hub: no repository can be created", "train"),
    override("data.train.path=[a.jsonl, b.jsonl]", "A bracket is not closed; put a setting with spaces in quotes."),
    override("task=clok", "mine.yaml, task.name: there is no task 'clok'. Did you mean 'clock'?"),
    override("task.promt=x", "mine.yaml, task: there is no setting 'promt'. Did you mean 'prompt'?"),
    override("task.prompt=7:05", "task.prompt: 425 is not text. YAML reads 12:30, 7 and on as other"),
    override("task=my_tasks:Clock", "'my_tasks:Clock' cannot be imported (No module named 'my_tasks'"),
    override("task=my_tasks.Clock", "An import path has a colon before the name: package.module:"),
    override("data.train=rows.jsonl", "found 'rows.jsonl'. Write {path: rows.jsonl}."),
    override("data.train.synthetic.name=clocks data.train.path=rows.jsonl", "data.train: set exactly one of path (a file), dataset and "),
    override("data.train.weight=0", "mine.yaml, data.train: weight must be above 0, not 0."),
    override("data.test=null", "mine.yaml, data.test: expected settings (path, dataset, "),
    override("data.too_long=drop", "mine.yaml, data: too_long: drop requires max_tokens; set it."),
    override("data.max_tokens=3", "line 1: the row '1' has 51 tokens, 4 of them for its ima", "train"),
    override("model.family=qwen", "model.family: there is no family 'qwen'. Did you mean 'qwen3_vl'?"),
    override("model.dtype=half", "model: dtype is one of auto, float32, bfloat16, float16, not 'half'"),
    override("model.quantize=nf4", "model.quantize: quantised weights cannot be trained; set `"),
    override("model.baseline=xvall", "there is no baseline 'xvall'. Did you mean 'xval'?"),
    override("modules.language=lora", "modules.language: a module is trained, frozen, adapted, "),
    override("lora.rank=8", "mine.yaml, lora: no module is adapted; add `modules: {language: adapted"),
    override("objective=ntill", "objective: there is no objective 'ntill'. Did you mean 'ntil'?"),
    override("objective.numeric_weight=-1", "mine.yaml, objective: numeric_weight must be >= 0 and finite, not -1.0."),
    override("objective.ce_weight=-1", "objective: ce_weight must be >= 0 and finite, not -1.0."),
    override("objective.balance=auto", "objective: balance is one of fixed, ratio, running, not 'au"),
    override("'objective.terms=[{name: emdd}]'", "there is no loss term 'emdd'. Did you mean 'emd'"),
    override("objective.terms=[emd]", "objective.terms.0: expected settings (name, weight, roles, o"),
    override("'objective.terms=[{name: emd, weight: -1}]'", "terms.0: weight must be >= 0 and fini"),
    override("'objective.terms=[{name: emd, options: {a: 2}}]'", "no setting 'a'. Known: none."),
    override("predict.batch_size=a", "mine.yaml, predict.batch_size: 'a' is not a whole number."),
    override("predict.decode=beam", "predict: decode: there is no rule 'beam'. Known: greedy, mbr,"),
    override("'predict.decode={for: iuo}'", "decode.for: there is no risk 'iuo'. Did you mean 'iou'"),
    override("evaluate.rows=0", "mine.yaml, evaluate: rows must be at least 1, not 0"),
    override("'evaluate={every_steps: 1, best: exct}'", "evaluate.best: there is no metric 'exct'. D", "train"),
]
DATA = [
    rows("", "rows.jsonl: no rows; give at least one."),
    rows("[\n  {}\n]\n", "line 1: not JSON (Expecting value: line 2 column 1 (char 2)). Name a file w"),
    rows("[{}]\n", 'line 1: expected an object {"id": ...}, found [{}]. Name a file with a list of'),
    rows(ROW.replace('"', "'"), "line 1: not JSON (Expecting property name enclosed in double quote"),
    rows(ROW.replace("{", '{"id": "0", ', 1), "rows.jsonl, line 1: the key 'id' appears twice; remove one of them."),
    rows("[{}]".format(ROW.replace("{", '{"id": "0", ', 1)), "x.json: the key 'id' appears twice; remove one of them.", "x.json"),
    rows(ROW.encode("utf-16"), "rows.jsonl: not UTF-8 (it is UTF-16); save it as UTF-8."),
    rows("image,time\n\xe4.png,7:05\n".encode("latin-1"), "not UTF-8 (byte 0xe4, as in Latin-1); sa", "a.csv"),
    rows("image,time\na.png,7:05\n".encode("utf-16"), "save it as UTF-8 (in Excel: CSV UTF-8).", "a.csv"),
    rows("image;time\na.png;7:05,1\n", "line 2: time '7:05,1' is not written as", "a.csv"),
    rows("file,label\na.png,7:05\n", 'no time; each row needs "time", or "hour" and "minute". This row has file, label.', "a.csv"),
    rows("image,time\na.png,7:05,x\n", "line 2: expected 2 fields (image, time) as in the header", "a.csv"),
    rows('{"images": [], "annotations": []}', "found images, annotations. `mm-numeric prepare` con", "x.json"),
    rows(ROW.replace("7:05", "25:00"), "'25:00' is not a time on a 12-hour dial: the hour of a dia"),
    rows(ROW.replace("7:05", "7:05 pm"), """time '7:05 pm' is not written as "H:MM", such as "7:05", without am or pm; the"""),
    rows(ROW.replace("image", "picture"), 'no image; each row needs "image" (a path). This row '),
    rows(ROW.replace("a.png", "b.png"), "line 1: there is no image b.png or images/b.png; set data.train.images to"),
    rows(ROW.replace("a.png", "mine.yaml"), "the image mine.yaml cannot be read (it is not a JPEG, PNG"),
    rows(2 * ROW, "line 2: the id '1' is already used in rows.jsonl, line 1; give each row its own"),
    rows(BOX % "[1, 2, 3]", "line 1, box: a box is [x1, y1, x2, y2], not 3 numbers.", task="task=grounding"),
    rows(BOX % "[30, 20, 10, 40]", "[30, 20, 10, 40] is reversed; write the smaller", task="task=grounding"),
    rows(BOX % "[1, 2, 300, 400]", "the point (300, 400) is outside the image of 56 x", task="task=grounding"),
    rows(BOX.replace("box", "bbox") % "[1, 2, 3, 4]", '"bbox" may be x1, y1, x2, y2 or', task="task=grounding"),
]
MODELS = [
    override("model.name=./my-model", "mine, model.name: './my-model': there is no such fol", "train"),
    override("model.name=./tinny", "there is no such folder. Did you mean 'tinyy'?", "train"),
    override("model.name=tiny-y", "There is no such folder here. Did you mean 'tinyy'? Give a hub na", "train"),
    override("model.name=my/model", "model.name: 'my/model' cannot be loaded (We couldn't conn", "train"),
    override("model.name=a.png", "mine, model.name: 'a.png': a file, not a folder.", "train"),
    override("model.name=.", "the folder '.' has no tokenizer (tokenizer*, vocab.*, *.model); cop", "train"),
    override(f"model.name={OLD}/run", f"name the weights of this run, {OLD}/run/model.", "train"),
    override(f"model.name={OLD}/run/model", "is a checkpoint of type 'gpt2', and Qwen2-VL is ", "train"),
    override("model.name=tinyy", "the tokenizer has no chat template, which the prompts of", "train"),
    override("model.attention=flash_attention_2", "model.attention: flash_attention_2 needs its", "train"),
]
ORDER = [
    Mistake(f"predict --model {OLD}/run", ": there is no such file. The run stores it relative to the fo"),
    override("--resume", "run: no checkpoint to resume from; train without --resume.", "train"),
    override(f"trainer.output_dir={OLD}/run", f"{OLD}/run contains another run: data.test.path is", "train"),
    Mistake(f"predict --model {OLD}/checkpoint", "is not finished; resume with `mm-numeric train ..."),
    Mistake(f"export {OLD}/checkpoint --out x", "is not finished; resume with `mm-numeric train ..."),
    Mistake(f"report {OLD}", "contains neither summary.json of a comparison nor config.yaml of a "),
    Mistake(f"score {OLD}/run", f"{OLD}/run: a run folder; score {OLD}/run/predictions.jsonl."),
    Mistake(f"score {OLD}/checkpoint/predictions.jsonl", "run `mm-numeric predict --model "),
    answers("id,answer\n1,7:05\n", 'line 2: no "text" (a text) in the fields id, answer', file="p.csv"),
    answers(ROW, 'p.jsonl, line 1: no "text" (a text) in the fields id, image, time'),
    answers("", "p.jsonl: no predictions to score."),
    answers("7:05\n", "p.jsonl, line 1: not JSON (Extra data"),
    answers(ANSWER, "p.jsonl, line 1: the rows name no task; name it with --task."),
    answers(ANSWER, "there is no task 'clok'. Did you mean 'clock'?", "--task clok"),
    answers(2 * ANSWER, "line 2: the id '1' appears twice; remove one of the rows", "--task clock"),
    answers(ANSWER.replace('"1"', '"9"'), "line 1: the id '9' is not in rows.jsonl (ids such as '1')",
            "--rows rows.jsonl --task clock"),
]
# fmt: on
MISTAKES = [*COMMANDS, *PATHS, *YAML, *SETTINGS, *DATA, *MODELS, *ORDER]


@pytest.fixture(scope="module")
def shared(finished_runs, tmp_path_factory):
    """A folder with old runs, and with a model whose tokenizer has no chat template."""
    folder = tmp_path_factory.mktemp("shared")
    shutil.copytree(finished_runs, folder / OLD)
    Qwen2VL.make_tiny(folder / "tinyy", seed=0)
    (folder / "tinyy/chat_template.jinja").unlink()
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch, shared):
    """Enter a folder with a config, a row, an image, a model and old runs."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(CONFIG, encoding="utf-8")
    Path("rows.jsonl").write_text(ROW, encoding="utf-8")
    Image.new("RGB", (56, 56)).save("a.png")
    for name in (OLD, "tinyy"):
        Path(name).symlink_to(shared / name)
    yield tmp_path
    set_verbosity()


def message_of(capsys, command: str) -> str:
    """Run a command that must fail with exit code 2; return what it writes to stderr."""
    try:
        code = cli.main([*shlex.split(command), "--quiet"])
    except SystemExit as end:  # argparse
        code = end.code
    out, err = capsys.readouterr()
    assert code == 2, out + err
    assert "Traceback" not in err
    assert out == ""
    *usage, line = err.splitlines()
    assert not usage or usage[0].startswith("usage: mm-numeric "), err  # otherwise one line
    assert line.startswith(("mm-numeric: ", "mm-numeric "))
    return err


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.message[:40])
def test_a_mistake_is_one_message_that_names_what_to_change(mistake, folder, capsys):
    if mistake.file:
        content = mistake.content
        Path(mistake.file).write_bytes(content if isinstance(content, bytes) else content.encode())
    said = message_of(capsys, mistake.command)
    assert mistake.message in said
    line = said.splitlines()[-1]
    words = re.split(r"[\s=\"']+", f"{mistake.command} {mistake.file}")[1:]
    named = {
        part for word in words for part in (word, word.rpartition(".")[2], str(Path(word).parent))
    }
    assert any(part and part in line for part in named | {"COMMAND", "--", "config"}), line


def test_a_full_disk_while_a_tiny_model_is_written(folder, capsys, monkeypatch):
    """A limit on the size of a file, because only root could mount a small disk."""
    monkeypatch.delenv(KEPT, raising=False)  # the model is written, not copied
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        said = message_of(capsys, "train mine.yaml")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "could not be written completely" in said
    assert "; free some space and start again." in said


def test_the_list_has_sixty_mistakes():
    assert len(MISTAKES) >= 60
    assert len(set(MISTAKES)) == len(MISTAKES)
