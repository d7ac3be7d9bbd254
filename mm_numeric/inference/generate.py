"""Batched greedy generation -> predictions.jsonl, which can be stopped and gone on with.

predictions.jsonl, one object a row:
    id       of the row
    image    its image, or null
    task     name of the task, so that `score` knows how to read the text
    task_options    what it is read by, where the task has such fields
    buckets  what the row says of itself for tables by bucket, such as its category
    prompt   what was asked
    text     what the model wrote, word for word
    parsed   the answer read from it, or null; places in pixels of the original image
    scores   of an answer of several shapes: the mean probability of the tokens of each
    reason   why it could not be read, or null
    target   the right answer, or null where the data has none
    frame    how the image was seen and places in it were written; null without an image
"""

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from tqdm import tqdm
from transformers import LogitsProcessor, LogitsProcessorList

from mm_numeric.answers import Example, Instances, Unreadable
from mm_numeric.config.data import DataSource
from mm_numeric.config.schema import Config
from mm_numeric.data.collator import prompt_batch
from mm_numeric.data.examples import load_examples
from mm_numeric.families.family import Family
from mm_numeric.files import write_text
from mm_numeric.geometry.frames import Frame
from mm_numeric.models.loading import device_type, load_family, load_model, quiet_unless_terminal
from mm_numeric.run_folder import FINISHED, MODEL, read_run


def predict(
    run: Path,
    source: DataSource | None,
    out: Path,
    *,
    batch_size: int | None = None,
    max_new_tokens: int | None = None,
    limit: int | None = None,
) -> int:
    """Answer every row that the output file does not answer yet.

    Args:
        run: The folder of a finished run.
        source: The rows; the run's own test rows when None.
        out: Where predictions are appended.
        batch_size: Rows at a time; as the run's config says when None.
        max_new_tokens: Where an answer is cut off; as the run's config says when None.
        limit: Only the first so many rows.

    Returns:
        How many rows were answered now.

    Raises:
        ValueError: If the run, the rows or the file cannot be used.
    """
    quiet_unless_terminal()
    config = read_run(run)
    source = source or config.data.test
    examples = load_examples(config.task, source, Path(config.data.cache), training=False)
    length = max_new_tokens or config.predict.max_new_tokens
    done = _claim_predictions(out, run, examples, length)
    examples = examples[:limit]
    todo = [example for example in examples if example.id not in done]
    if not todo:
        return 0
    family = load_family(config, str(run / MODEL))
    model = load_model(config, family, str(run / MODEL))
    model.to(device_type()).eval()
    size = batch_size or config.predict.batch_size
    batches = [todo[i : i + size] for i in range(0, len(todo), size)]
    bar = tqdm(total=len(examples), initial=len(done), unit="row", desc="answering", disable=None)
    with out.open("a", encoding="utf-8") as file, bar:
        for batch in batches:
            answers = generate(model, family, batch, length)
            for example, answer in zip(batch, answers, strict=True):
                line = prediction(config, family, example, answer)
                file.write(json.dumps(line) + "\n")  # all ASCII, whatever was written
            file.flush()
            bar.update(len(batch))
    return len(todo)


class Generated(NamedTuple):
    """What a model wrote."""

    text: str
    frame: Frame | None
    """The frame that it wrote in; None where there is no image."""

    ids: Sequence[int]
    """Its tokens, its end and the padding behind it included."""

    probabilities: Sequence[float]
    """What the model gave each of them."""

    def surely(self, family: Family, span: tuple[int, int]) -> float:
        """Return the mean probability of the tokens of a part of the text, 0 to 1.

        Args:
            family: What decodes them.
            span: The first character, and one past the last.
        """
        counts = range(1, len(self.ids) + 1)  # of tokens that reach up to some character

        def length(count: int) -> int:
            return len(family.text(self.ids[:count]))

        first = bisect_right(counts, span[0], key=length)
        last = bisect_left(counts, span[1], key=length)
        return fmean(self.probabilities[first : last + 1])


class _Surely(LogitsProcessor):
    """Keeps how probable the likeliest token of each row is: the one that greed takes."""

    def __init__(self) -> None:
        self.steps: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores, [batch, vocabulary], as they are."""
        self.steps.append((scores.amax(-1) - scores.logsumexp(-1)).float().exp())
        return scores


@torch.no_grad()  # not inference_mode: what a model keeps from it could not be trained with
def generate(
    model: Any,
    family: Family,
    examples: Sequence[Example],
    max_new_tokens: int,
    *,
    add_dummy_image_row: bool = False,
) -> Iterator[Generated]:
    """Yield what a model writes for each example, greedily.

    What a checkpoint's generation_config asks for is set aside: a penalty on repetition, which
    Qwen's have, would keep a model from writing 11:11.

    Args:
        model: With a head.
        family: Whose model it is.
        examples: What is asked.
        max_new_tokens: Where an answer is cut off.
        add_dummy_image_row: See ``prompt_batch``: under ZeRO-3 ranks see images together.
    """
    inputs, frames = prompt_batch(family, examples, add_dummy_image_row=add_dummy_image_row)
    inputs = {key: value.to(model.device) for key, value in inputs.items()}
    written = family.generate_answers(model, inputs, max_new_tokens)
    if written is None:
        written = _greedily(model, family, inputs, max_new_tokens)
    for (ids, probabilities), frame in zip(written, frames, strict=False):  # a blank one is behind
        yield Generated(family.text(ids), frame, ids, probabilities)


def _greedily(
    model: Any, family: Family, inputs: dict[str, Any], max_new_tokens: int
) -> list[tuple[list[int], list[float]]]:
    """Return the tokens that a model writes for each row, and the probability of each token."""
    if family.encoder_decoder:
        inputs["decoder_start_token_id"] = family.decoder_start_id
    surely = _Surely()
    written = model.generate(
        **inputs,
        logits_processor=LogitsProcessorList([surely]),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        eos_token_id=family.stop_ids,
        pad_token_id=family.pad_id,
    )
    asked = 1 if family.encoder_decoder else inputs["input_ids"].shape[1]
    probabilities = torch.stack(surely.steps, dim=1).tolist()
    return list(zip(written[:, asked:].tolist(), probabilities, strict=True))


def prediction(
    config: Config, family: Family, example: Example, generated: Generated
) -> dict[str, Any]:
    """Return one line of predictions.jsonl; shapes have the mean probability of their tokens."""
    text, frame, *_ = generated
    answer = config.task.parse(text, frame)
    unreadable = isinstance(answer, Unreadable)
    spans = answer.spans if isinstance(answer, Instances) else ()
    options = config.task.options()
    reads_by = {name: options[name] for name in config.task.reads_by}
    return {
        "id": example.id,
        "image": None if example.image is None else str(example.image.resolve()),
        "task": config.task_name,
        **({"task_options": reads_by} if reads_by else {}),
        **({"buckets": dict(example.buckets)} if example.buckets else {}),
        "prompt": example.prompt,
        "text": text,
        "parsed": None if unreadable else config.task.record(answer),
        **({"scores": [round(generated.surely(family, s), 6) for s in spans]} if spans else {}),
        "reason": answer.reason if unreadable else None,
        "target": None if example.answer is None else config.task.record(example.answer),
        "frame": None if frame is None else frame.to_dict(),
    }


def _claim_predictions(
    out: Path, run: Path, examples: Sequence[Example], max_new_tokens: int
) -> set[str]:
    """Return the ids that the file already answers, after checking that the same model wrote it.

    Raises:
        ValueError: If the file is of another model, data set or setting.
    """
    made_by = {
        "run": _digest((run / FINISHED).read_bytes()),
        "rows": _digest(*(repr(example).encode() for example in examples)),
        "max_new_tokens": max_new_tokens,
    }
    record = out.with_name(out.name + ".made_by.json")
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(record, json.dumps(made_by, indent=1) + "\n")
        return set()
    theirs = _read_json(record.read_text(encoding="utf-8"), record) if record.exists() else {}
    for key, value in made_by.items():
        if theirs.get(key) != value:
            raise ValueError(
                f"{out} holds predictions by another run, of other rows or with other settings "
                f"(their {key}: {theirs.get(key)}, here: {value}); choose another file with --out, "
                "or delete it."
            )
    *lines, rest = out.read_text(encoding="utf-8").split("\n")
    if rest:  # cut off while it was written
        write_text(out, "".join(line + "\n" for line in lines))
    return {_read_json(line, out)["id"] for line in lines}


def _digest(*parts: bytes) -> str:
    """Return a short name for some content."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _read_json(text: str, path: Path) -> dict[str, Any]:
    """Read an object that this module wrote."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: damaged ({error}); delete it and predict again.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: damaged ({text!r:.40}); delete it and predict again.")
    return found
