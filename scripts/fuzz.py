"""Search for inputs that raise another error than ValueError, or that take too long.

Seeds are changed at random: bytes are flipped, deleted, repeated, replaced by words that break
parsers, and joined with other seeds. An input that fails is shortened and written to the folder of
failures; ``--replay FILE`` runs it again. The same ``--seed`` gives the same inputs.

    ./scripts/fuzz --minutes 10
    ./scripts/fuzz --minutes 1 --only config rows
    ./scripts/fuzz --replay fuzz_failures/config-1a2b3c4d.yaml
"""

import argparse
import contextlib
import hashlib
import io
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from mm_numeric.answers import Example
from mm_numeric.cli import main as cli
from mm_numeric.config.reader import CONFIGS, config_from_dict, read_config
from mm_numeric.data.images import open_image
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.inference import generate  # noqa: F401  (so that its import is not timed)
from mm_numeric.io.files import read_rows
from mm_numeric.registry import IMPORTERS, TASKS, load
from mm_numeric.settings import parse_yaml

LIMIT_S = 10
_TEMPORARY = tempfile.TemporaryDirectory(prefix="mm_numeric_fuzz_")
FILES = Path(_TEMPORARY.name) / "runs"
"""A finished run and a comparison; ``main`` makes them as the tests do."""

WORDS = [
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\t", b"\0", b"\xff", b"\xf0\x9f", b"- "),
    *(b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"Infinity", b"9" * 30, b"1" * 5000),
    *(b"&a", b"*a", b"!!python/object/apply:os.system", b"<<:", b"../", b"\\ud800", b"a:b"),
    *(b"[" * 2000, b"{" * 300, b"- " * 2000, b"<loc0001>", b"\x1b[2J", b"\xef\xbb\xbf", b"\r"),
]
FRAMES = [
    Frame(640, 480, Resize(kind="letterbox", side=336).view(640, 480), own)
    for own in COORDINATES.values()
]


class Target(NamedTuple):
    """A function that reads a file, and its seeds. The file's name ends with the seed's name."""

    seeds: dict[str, bytes]
    read: Callable[[Path], object]


def parse_answers(file: Path) -> None:
    """Parse a text by each task, and by each coordinate format."""
    text = file.read_bytes().decode("utf-8", "surrogateescape")
    for path in TASKS.values():
        task = load(path, "fuzz")()
        for frame in FRAMES if "frame" in task.parse.__code__.co_varnames else [None]:
            with contextlib.suppress(ValueError):
                task.read(text, frame)


def read_and_write_config(file: Path) -> None:
    """Read a config, write it as YAML, and read this again."""
    config = read_config(str(file))
    config_from_dict(parse_yaml(config.to_yaml(), "written"), where="written", title="a")


def read_image(file: Path) -> None:
    """Decode an image."""
    open_image(Example(id="1", image=file, prompt="", answer=None, where="fuzz"))


def prepare(name: str) -> Callable[[Path], None]:
    """Return a function that converts a file with an importer."""

    def read(file: Path) -> None:
        out = file.with_name("out.jsonl")
        run(["prepare", name, str(file), "--out", str(out), "--force"])

    return read


def run(words: Sequence[str]) -> None:
    """Run a command; raise RuntimeError for an unexpected exit code."""
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        try:
            cli.main(list(words))
        except SystemExit as error:
            if error.code not in (0, 1, 2):
                raise RuntimeError(f"exit code {error.code}") from error


def stored(name: str) -> Callable[[Path], None]:
    """Return a function that puts a file into a stored run or comparison, and runs commands."""

    def read(file: Path) -> None:
        folder = file.parent / "stored"
        shutil.copytree(FILES / name, folder)
        target = folder / file.name.partition("__")[2].replace("__", "/")
        shutil.copy(file, target)
        if name == "run":
            run(["score", str(folder / "predictions.jsonl")])
            run(["predict", "--model", str(folder), "--data", str(FILES / "test.jsonl"),
                 "--limit", "1", "--out", str(file.parent / "answers.jsonl")])  # fmt: skip
        else:
            run(["report", str(folder)])

    return read


def files_of(name: str) -> dict[str, bytes]:
    """Return the small files of a stored run or comparison, with their paths as names."""
    files = [path for path in sorted((FILES / name).rglob("*")) if path.is_file()]
    names = ("__".join(path.relative_to(FILES / name).parts) for path in files)
    return {f"__{n}": p.read_bytes() for n, p in zip(names, files, strict=True)}


def images() -> dict[str, bytes]:
    """Return small images of several formats and modes."""
    found = {}
    for kind, mode in (("png", "RGBA"), ("png", "I;16"), ("jpeg", "RGB"), ("gif", "P"),
                       ("webp", "RGB"), ("tiff", "L"), ("bmp", "1")):  # fmt: skip
        file = io.BytesIO()
        Image.new(mode, (9, 7), 1).save(file, kind)
        found[f"{mode.replace(';', '')}.{kind}"] = file.getvalue()
    return found


def targets() -> dict[str, Target]:
    """Return everything that is fuzzed."""
    rows = (FILES / "test.jsonl").read_bytes()[:2000]
    shape = b'{"id": "1", "image": "a.png", "width": 9, "height": 9, "instances": [{"box": [0,0,'
    shape += (
        b'3,4], "label": "x"}, {"polygon": [[0,0],[3,0],[3,4]]}], "question": "q", "answer": 1}'
    )
    coco = b'{"images": [{"id": 1, "file_name": "a.png", "width": 9, "height": 9}], "annotations":'
    coco += b' [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0,0,3,4]}], "categories":'
    coco += b' [{"id": 1, "name": "x"}]}'
    texts = {"a.txt": b"377,117,463,117,465,130,378,130,Genaxis", "a.jsonl": shape, "b.json": coco}
    answers = [b"It is 7:05:15", b"The answer is 1,234.5 #### 12", b"[0.1, 0.2, 0.3, 0.4]",
               b"<|box_start|>(1,2),(3,4)<|box_end|>", b'[{"bbox_2d": [1,2,3,4], "label": "a"}]',
               b"<loc0001><loc0002><loc0003><loc0004> a", b'{"hours": 7}', b"A. yes"]  # fmt: skip
    found = {
        "answers": Target({f"{i}.txt": text for i, text in enumerate(answers)}, parse_answers),
        "config": Target({path.name: path.read_bytes() for path in CONFIGS.glob("*.yaml")},
                         read_and_write_config),
        "rows": Target({"a.jsonl": rows, "a.json": b"[" + shape + b"]", "a.csv": b"id,b\n1,2\n",
                        "a.tsv": b"id\tb\n1\t2\n"}, lambda file: list(read_rows(file))),
        "images": Target(images(), read_image),
        "run": Target(files_of("run"), stored("run")),
        "comparison": Target(files_of("comparison"), stored("comparison")),
    }  # fmt: skip
    return found | {f"prepare {name}": Target(texts, prepare(name)) for name in IMPORTERS}


def changed(data: bytes, seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """Return a copy of a seed with a few random changes."""
    for _ in range(rng.choice((1, 1, 2, 4, 9))):
        at = rng.randint(0, len(data))
        to = min(len(data), at + rng.choice((1, 1, 3, 20, 200)))
        kind = rng.randrange(6)
        if kind == 0:
            data = (
                data[:at] + bytes(byte ^ 1 << rng.randrange(8) for byte in data[at:to]) + data[to:]
            )
        elif kind == 1:
            data = data[:at] + data[to:]
        elif kind == 2:
            data = data[:to] + data[at:to] * rng.choice((1, 2, 50)) + data[to:]
        elif kind == 3:
            other = rng.choice(seeds)
            data = data[:at] + other[rng.randint(0, len(other)) :]
        else:
            data = data[:at] + rng.choice(WORDS) + data[to if kind == 4 else at :]
    return data


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Raise TimeoutError after ``LIMIT_S`` seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {LIMIT_S} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)


def failure(target: Target, name: str, data: bytes) -> str | None:
    """Return the error of an input and its location; None if it is read, or raises ValueError."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, name)
        file.write_bytes(data)
        try:
            with time_limit(), warnings.catch_warnings(action="ignore"):
                target.read(file)
        except ValueError:
            return None
        except Exception as error:
            ours = [
                f for f in traceback.extract_tb(error.__traceback__) if "mm_numeric" in f.filename
            ]
            where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
            return f"{type(error).__name__} at {where}"
    return None


def minimised(target: Target, name: str, data: bytes, why: str) -> bytes:
    """Delete parts of an input, as long as it fails in the same way, for at most 20 seconds."""
    size, end = max(1, len(data) // 2), time.monotonic() + 20
    while size and time.monotonic() < end:
        at, before = 0, len(data)
        while at < len(data) and time.monotonic() < end:
            shorter = data[:at] + data[at + size :]
            if failure(target, name, shorter) == why:
                data = shorter
            else:
                at += size
        size = size if len(data) < before and size > 1 else size // 2
    return data


def main() -> int:
    """Fuzz for some minutes; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="TARGET", help="such as config or rows")
    parser.add_argument("--out", type=Path, default=Path("fuzz_failures"))
    parser.add_argument("--replay", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
    from finished_runs import make_runs

    with contextlib.redirect_stdout(io.StringIO()):
        make_runs(FILES)
    every = targets()
    if arguments.replay:
        target, _, name = arguments.replay.name.partition("-")
        print(failure(every[target], name.partition("-")[2], arguments.replay.read_bytes()))
        return 0
    rng, runs, failures = random.Random(arguments.seed), Counter[str](), {}
    end = time.monotonic() + 60 * arguments.minutes
    names = arguments.only or list(every)
    while time.monotonic() < end:
        target = rng.choice(names)
        name = rng.choice(list(every[target].seeds))
        seeds = list(every[target].seeds.values())
        data = changed(every[target].seeds[name], seeds, rng)
        runs[target] += 1
        why = failure(every[target], name, data)
        if why and (target.split()[0], why) not in failures:
            data = minimised(every[target], name, data, why)
            arguments.out.mkdir(parents=True, exist_ok=True)
            file = arguments.out / f"{target}-{hashlib.sha256(data).hexdigest()[:8]}-{name}"
            file.write_bytes(data)
            failures[target.split()[0], why] = file
            print(f"{target}: {why}; {len(data)} bytes: {file}", flush=True)
    print(", ".join(f"{count:,} {name}" for name, count in sorted(runs.items())))
    print(f"{sum(runs.values()):,} inputs, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.exit(main())
