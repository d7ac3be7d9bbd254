"""``mm-numeric predict --image``: ask a model about single images, and draw its answers."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from mm_numeric.cli.predict import predict_settings
from mm_numeric.data.images import FORMATS, open_upright
from mm_numeric.io.log import logger, show

_OTHERS = (
    "data", "images", "training_rows", "out", "endpoint", "served_model", "concurrency", "timeout",
    "proxy", "resources", "tensor_parallel", "limit",
)  # fmt: skip

_LEGEND = (
    "The percentage after a label is the probability that the right answer has such an object; the "
    "token probability is the mean over its tokens, which greedy `predict` writes as `scores`."
)


def ask(arguments: argparse.Namespace, run: Path) -> None:
    """Print the answer to a question about each image, and its confidence; draw the answers.

    If some images cannot be used, raise ValueError after the other images were answered.
    """
    others = [name for name in _OTHERS if getattr(arguments, name)]
    others += ["engine"] * (arguments.engine != "local")
    if others:
        option = others[0].replace("_", "-")
        raise ValueError(f"--{option} is for rows of a file, not for --image; remove one of them.")
    given = [path for name in arguments.image for path in image_files(name)]
    images = _usable(given, open_upright)  # before the model is loaded
    files = dict(zip(given, _files(arguments.draw, given), strict=True)) if arguments.draw else {}
    from mm_numeric.inference.ask import LoadedRun

    model = LoadedRun(
        run,
        trust_remote_code=arguments.trust_remote_code,
        overrides=arguments.overrides,
        **predict_settings(arguments),
    )
    images = _usable(images, lambda path: model.opened(path, arguments.ask))
    show(f"question: {model.question(arguments.ask)}")
    rule, has_token_scores = model.config.predict.rule, False
    for index, found in enumerate(model.answer(images or [None], arguments.ask)):
        answer = found.answers[rule]
        name = f"{images[index]}: " if images else ""
        show("\n  ".join([f"{name}{answer.summary}", *answer.lines]))
        if files:
            found.drawn(rule).save(files[images[index]])
        has_token_scores = has_token_scores or bool(answer.token_scores)
    if has_token_scores:
        show(_LEGEND)
    if files:
        show(f"drawn: {arguments.draw}")
    if failed := len(given) - len(images):
        raise ValueError(f"{failed} of {len(given)} images could not be answered; see above.")


def _usable(images: list[Path], check: Callable[[Path], Any]) -> list[Path]:
    """Return the images that ``check`` accepts, and log the errors; raise the first if all fail."""
    errors: dict[Path, ValueError] = {}
    for path in images:
        try:
            check(path)
        except ValueError as error:
            errors[path] = error
    usable = [path for path in images if path not in errors]
    for found in errors.values():
        if not usable:
            raise found
        logger.error("%s", found)
    return usable


def image_files(path: Path) -> list[Path]:
    """Return ``path`` itself if it is a file, else the images in this folder, sorted by name."""
    if not path.exists():
        raise ValueError(f"--image {path}: there is no such file or folder.")
    if not path.is_dir():
        return [path]
    endings = {end for end, kind in Image.registered_extensions().items() if kind in FORMATS}
    found = sorted(own for own in path.iterdir() if own.suffix.lower() in endings)
    if not found:
        raise ValueError(f"--image {path}: the folder contains no image ({', '.join(FORMATS)}).")
    return found


def _files(draw: Path, images: list[Path]) -> list[Path]:
    """Return the file that each answer is drawn to: ``draw`` itself, or a file in this folder."""
    if not images:
        raise ValueError("--draw draws the answer on the image; add --image.")
    if len(images) == 1 and draw.suffix:
        files = [draw]
    else:
        files = [draw / f"{image.stem}.png" for image in images]
    ending = files[0].suffix.lower()
    if Image.registered_extensions().get(ending) not in FORMATS:
        raise ValueError(f"--draw {draw}: the name of an image file ends in .png or .jpg.")
    if len(images) > 1 and draw.suffix:
        raise ValueError(f"--draw {draw}: there are {len(images)} images; name a folder.")
    if len({file.name for file in files}) < len(files):
        raise ValueError("--draw: two images have the same name; draw them one after another.")
    if {file.resolve() for file in files} & {image.resolve() for image in images}:
        raise ValueError(f"--draw {draw}: it would overwrite an image; name another file.")
    files[0].parent.mkdir(parents=True, exist_ok=True)
    return files
