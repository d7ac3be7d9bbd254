"""Generate answers greedily in batches, and append them to predictions.jsonl.

predictions.jsonl has one object per sample:
    id       id of the sample
    image    path of the image, or null
    task     name of the task, which `score` needs to parse the text
    task_options    options of the task that change how text is parsed, if there are any
    buckets  groups that the sample belongs to, such as its category, for metrics per group
    prompt   the prompt
    text     the generated text, unchanged
    parsed   the parsed answer, or null; coordinates in pixels of the original image
    scores   mean token probability of each object, if the answer is a list of objects
    reason   reason of the parse failure, or null
    target   the correct answer, or null if the data has none
    frame    image size and coordinate format that the model used; null without an image
"""

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from mm_numeric.answers import Example, Instances, Unreadable
from mm_numeric.config.data import DataSource
from mm_numeric.config.schema import Config
from mm_numeric.data.collator import prompt_batch
from mm_numeric.data.examples import load_examples
from mm_numeric.data.positions import check_questions
from mm_numeric.families.family import Family
from mm_numeric.files import write_json, write_text
from mm_numeric.geometry.frames import Frame
from mm_numeric.log import progress
from mm_numeric.models.loading import device_type, load_family, load_model, quiet_unless_terminal
from mm_numeric.run_folder import FINISHED, MODEL, locked, read_run


def predict(
    run: Path,
    source: DataSource | None,
    out: Path,
    *,
    batch_size: int | None = None,
    max_new_tokens: int | None = None,
    limit: int | None = None,
    trust_remote_code: bool = False,
) -> int:
    """Generate an answer to each sample that has no answer in the output file yet.

    Args:
        run: Folder of a finished run.
        source: Samples to answer; the test samples of the run if None.
        out: File to append predictions to. An existing file must be from the same run, samples
            and settings, and no other process may be writing it; otherwise a ValueError is raised.
        batch_size: Number of samples per batch; None for ``predict.batch_size`` of the config.
        max_new_tokens: Maximum answer length; None for ``predict.max_new_tokens`` of the config.
        limit: Answer only the first ``limit`` samples; all if None.
        trust_remote_code: Allow a config that refers to Python code, such as a task of your own.

    Returns:
        The number of new answers.
    """
    quiet_unless_terminal()
    config = read_run(run, trust_remote_code=trust_remote_code)
    source = source or config.data.test
    examples = load_examples(config.task, source, Path(config.data.cache), training=False)
    length = max_new_tokens or config.predict.max_new_tokens
    size = batch_size or config.predict.batch_size
    with locked(out, "file"):
        done = _claim_predictions(out, run, examples, length)
        examples = examples[:limit]
        todo = [example for example in examples if example.id not in done]
        if todo:
            bar = progress(desc="answering", unit="row", total=len(examples), initial=len(done))
            _append_answers(config, run, todo, out, size, length, bar)
    return len(todo)


def _append_answers(
    config: Config, run: Path, todo: list[Example], out: Path, size: int, length: int, bar: Any
) -> None:
    """Load a trained model, answer the samples ``todo``, and append the answers to ``out``."""
    family = load_family(config, str(run / MODEL))
    check_questions(family, todo, length)
    model = load_model(config, family, str(run / MODEL))
    model.to(device_type()).eval()
    batches = [todo[i : i + size] for i in range(0, len(todo), size)]
    with out.open("a", encoding="utf-8") as file, bar:
        for batch in batches:
            answers = generate(model, family, batch, length)
            for example, answer in zip(batch, answers, strict=True):
                line = prediction(config, family, example, answer)
                file.write(json.dumps(line) + "\n")  # ASCII only, so that each line is valid UTF-8
            file.flush()
            bar.update(len(batch))


class Generated(NamedTuple):
    """A generated answer, with its tokens and their probabilities."""

    text: str
    frame: Frame | None
    """Image size and coordinate format, to read coordinates in the text; None without an image."""

    ids: Sequence[int]
    """Generated token ids, including the end token and the padding that follows."""

    probabilities: Sequence[float]
    """Probability of each token in ``ids``, 0 to 1."""

    def mean_probability(self, family: Family, span: tuple[int, int]) -> float:
        """Return the mean probability of the tokens that spell ``text[span[0]:span[1]]``."""
        counts = range(1, len(self.ids) + 1)

        def length(count: int) -> int:
            return len(family.text(self.ids[:count]))

        first = bisect_right(counts, span[0], key=length)
        last = bisect_left(counts, span[1], key=length)
        return fmean(self.probabilities[first : last + 1])


class _GreedyProbability(LogitsProcessor):
    """Logits processor that stores the probability of the most likely token at each step."""

    def __init__(self) -> None:
        self.steps: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.steps.append((scores.amax(-1) - scores.logsumexp(-1)).float().exp())
        return scores


@torch.no_grad()  # not inference_mode: tensors that the model caches could not be trained with
def generate(
    model: Any,
    family: Family,
    examples: Sequence[Example],
    max_new_tokens: int,
    *,
    add_dummy_image_row: bool = False,
) -> Iterator[Generated]:
    """Generate an answer to each example with greedy decoding, as one batch.

    The checkpoint's generation settings are overridden: a repetition penalty, for example, would
    hinder answers such as 11:11. ``add_dummy_image_row`` adds a prompt with a dummy image to a
    batch without images. ZeRO-3 needs it, because there all ranks must run the vision tower.
    """
    inputs, frames = prompt_batch(family, examples, add_dummy_image_row=add_dummy_image_row)
    inputs = {key: value.to(model.device) for key, value in inputs.items()}
    written = family.generate_answers(model, inputs, max_new_tokens)
    if written is None:
        written = _greedily(model, family, inputs, max_new_tokens)
    # Not strict, to drop the dummy image row, which is last.
    for (ids, probabilities), frame in zip(written, frames, strict=False):
        yield Generated(family.text(ids), frame, ids, probabilities)


def _greedily(
    model: Any, family: Family, inputs: dict[str, Any], max_new_tokens: int
) -> list[tuple[list[int], list[float]]]:
    """Call ``model.generate``; return the new tokens of each prompt and their probabilities."""
    if family.encoder_decoder:
        inputs["decoder_start_token_id"] = family.decoder_start_id
    probability = _GreedyProbability()
    written = model.generate(
        **inputs,
        logits_processor=LogitsProcessorList([probability]),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        eos_token_id=family.stop_ids,
        pad_token_id=family.pad_id,
    )
    prompt_length = 1 if family.encoder_decoder else inputs["input_ids"].shape[1]
    probabilities = torch.stack(probability.steps, dim=1).tolist()
    return list(zip(written[:, prompt_length:].tolist(), probabilities, strict=True))


def prediction(
    config: Config, family: Family, example: Example, generated: Generated
) -> dict[str, Any]:
    """Parse a generated answer, and return its line of predictions.jsonl as a dictionary."""
    text, frame, *_ = generated
    answer = config.task.parse(text, frame)
    unreadable = isinstance(answer, Unreadable)
    spans = answer.spans if isinstance(answer, Instances) else ()
    scores = [round(generated.mean_probability(family, span), 6) for span in spans]
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
        **({"scores": scores} if scores else {}),
        "reason": answer.reason if unreadable else None,
        "target": None if example.answer is None else config.task.record(example.answer),
        "frame": None if frame is None else frame.to_dict(),
    }


def _claim_predictions(
    out: Path, run: Path, examples: Sequence[Example], max_new_tokens: int
) -> set[str]:
    """Return the ids of the samples answered in the file ``out``; raise if another run wrote it."""
    made_by = {
        "run": _digest((run / FINISHED).read_bytes()),
        "rows": _digest(*(repr(example).encode() for example in examples)),
        "max_new_tokens": max_new_tokens,
    }
    record = out.with_name(out.name + ".made_by.json")
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(record, made_by, indent=1)
        return set()
    theirs = _parse_object(record.read_text(encoding="utf-8"), record) if record.exists() else {}
    for key, value in made_by.items():
        if theirs.get(key) != value:
            raise ValueError(
                f"{out} contains predictions of another run, of other rows or with other settings "
                f"({key} is {theirs.get(key)} there and {value} here); choose another file "
                "with --out, or delete it."
            )
    *lines, rest = out.read_text(encoding="utf-8").split("\n")
    if rest:  # an incomplete line of a killed process
        write_text(out, "".join(line + "\n" for line in lines))
    return {_parse_object(line, out)["id"] for line in lines}


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _parse_object(text: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: corrupt ({error}); delete it and predict again.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: corrupt ({text!r:.40}); delete it and predict again.")
    return found
