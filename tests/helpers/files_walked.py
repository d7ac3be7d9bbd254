"""List the files of the library that run for one row, answer or config, in order of their calls.

python tests/helpers/files_walked.py row|answer|config ...

Each is counted in a process of its own: in one that has done other work, caches have the results of
some functions already.
"""

import json
import os
import sys
import tempfile
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from types import ModuleType

from import_graph import ROOT

ROOMS = tuple(f"{ROOT / room}{os.sep}" for room in ("mm_numeric", "tasks", "evaluation"))


class FilesWalked:
    """Context that collects the files of the library whose functions are called, in order."""

    def __init__(self):
        self.files, self.seen = {}, set()

    def __enter__(self):
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _called(self, frame, event, _):
        name = frame.f_code.co_filename
        if event != "call" or name in self.seen:
            return
        if frame.f_code.co_name != "<module>":  # which an import runs, and not a row
            self.seen.add(name)
            path = os.path.realpath(name)
            if path.startswith(ROOMS):
                self.files.setdefault(Path(path).relative_to(ROOT).as_posix())


def row_walk(folder):
    """Return the files that run from the rows of a file to the loss of the first one.

    The config trains with ``ntil``, and has a limit of tokens. The model, the collator and the
    trainer are made before.
    """
    from tiny_models import small_config

    from mm_numeric.data.collator import make_collator
    from mm_numeric.data.examples import generated_rows
    from mm_numeric.data.training_set import TrainingRows
    from mm_numeric.models.loading import load_family, model_source
    from mm_numeric.training import setup

    settings = "objective=ntil", "data.max_tokens=200", "data.train.synthetic.rows=4"
    rows = generated_rows(small_config(folder, *settings).data.train, folder)
    source = f"data.train={{path: {json.dumps(str(rows))}}}"
    config = small_config(folder, *settings, source)
    source = model_source(config, folder)
    args = setup.training_arguments(config)

    def loss_of_first_row(walk):
        collator = make_collator(config, load_family(config, source))
        with walk:
            examples = TrainingRows(config).for_trainer(collator)
        trainer = setup.make_trainer(config, args, examples, collator, source)
        trainer.model.train()
        with walk:
            batch = trainer.data_collator(examples[:1])
            trainer.compute_loss(trainer.model, batch)
        return list(walk.files)

    loss_of_first_row(FilesWalked())  # imports what is used
    return loss_of_first_row(FilesWalked())


def config_walk(folder):
    """Return the files that run from the command ``train`` to its config."""
    from mm_numeric.cli import main as cli

    found = []

    def stop(config, **_):
        found.append(config)
        sys.setprofile(None)
        raise ValueError("no training")

    for name in ("config.reader", "training.errors"):  # which the real module imports, and torch
        import_module(f"mm_numeric.{name}")
    sys.modules["mm_numeric.training.run"] = run = ModuleType("mm_numeric.training.run")
    run.train = stop
    with FilesWalked() as walk:
        cli.main(["train", "clock_tiny", f"trainer.output_dir={folder / 'run'}"])
    assert found
    return list(walk.files)


def answer_walk(folder):
    """Return the files that run to score a predictions file with one answer of a clock."""
    from mm_numeric.evaluation.score import score

    path = folder / "predictions.jsonl"
    row = {"id": "1", "task": "clock", "text": "7:05", "target": "7:06"}
    path.write_text(json.dumps(row), encoding="utf-8")
    with FilesWalked() as walk:
        score(path)
    return list(walk.files)


WALKS = {"row": row_walk, "answer": answer_walk, "config": config_walk}


if __name__ == "__main__":
    names = sys.argv[1:] or [*WALKS]
    if "row" in names:  # once for all processes; none of it is counted
        import transformers.models.qwen2_vl.modeling_qwen2_vl
        import transformers.trainer  # noqa: F401
    for name in names:
        if not (child := os.fork()):
            with redirect_stdout(sys.stderr):
                files = WALKS[name](Path(tempfile.mkdtemp()))
            print(name, *files, flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(1)
