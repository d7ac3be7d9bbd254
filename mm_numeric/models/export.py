"""Export the model of a finished run as a folder that transformers can load, or upload it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import OfflineModeIsEnabled
from transformers import GenerationConfig

from mm_numeric.config.schema import Config, read_baseline
from mm_numeric.families.chat_template import default_template, message, render
from mm_numeric.families.family import Family
from mm_numeric.io.atomic_files import atomic_folder, locked, reject_link
from mm_numeric.io.files import read_json, stored_content
from mm_numeric.io.log import logger
from mm_numeric.models.adapters import merged
from mm_numeric.models.loading import load_family, load_model, quiet_unless_terminal
from mm_numeric.models.model_card import CARD, CardResults, model_card
from mm_numeric.models.precision import Precision
from mm_numeric.runs.folder import FINISHED, MODEL, RESULTS, read_run
from mm_numeric.runs.results_file import SCORE_AGAIN, read_sections

_HUB = ("huggingface_hub", "httpx", "httpx2")  # their exception classes differ between versions


def export(run: Path, out: Path, *, trust_remote_code: bool = False) -> None:
    """Save the model of a finished run, with tokenizer and model card, in a new folder.

    The folder also contains the image processor and the settings for image size and coordinates.
    Adapters are merged into the weights without changing their dtype. If the model was quantised
    for training, adapters are merged into the original weights. A run that trained a published
    baseline method, such as xVal, cannot be exported: transformers has no class for its model.
    Set ``trust_remote_code`` if the run's config or checkpoint needs custom Python code.
    """
    quiet_unless_terminal()
    config = read_run(run, trust_remote_code=trust_remote_code)
    if config.model.baseline is not None:
        name = read_baseline(config.model.baseline, f"{run}, model.baseline").name
        raise ValueError(
            f"{run}: a model of {name} cannot be exported, because transformers has no class for "
            "it; predict with the run itself."
        )
    with locked(out):
        reject_link(out)
        if out.exists():
            raise ValueError(f"{out} exists; name a folder that does not, or delete it.")
        with atomic_folder(out) as unfinished:
            _save(config, run, unfinished, out.name)


def _save(config: Config, run: Path, folder: Path, name: str) -> None:
    precision = Precision.of_run(run)
    config = precision.of_weights(replace(config, model=replace(config.model, quantize=None)))
    family = load_family(config, str(run / MODEL))
    model = merged(load_model(config, family, str(run / MODEL)))
    model.generation_config = _greedy(config, family)
    model.save_pretrained(folder)
    family.save(folder)
    facts = read_json(run / FINISHED)
    _warn_of_other_prompt(family, facts["first_prompt"])
    path = run / RESULTS
    with stored_content(path, SCORE_AGAIN):
        results = CardResults(read_sections(path) if path.is_file() else {})
    with stored_content(run / FINISHED):
        card = model_card(config, family, model, precision, facts, results, name)
    (folder / CARD).write_text(card, encoding="utf-8")


def _warn_of_other_prompt(family: Family, question: str) -> None:
    """Log a warning if the saved chat template does not write the prompt of the training."""
    saved = getattr(family.processor, "chat_template", None) or family.tokenizer.chat_template
    template, has_image = default_template(saved), family.takes_images
    if template is None:
        return
    turn = message("user", question, True) if has_image else {"role": "user", "content": question}
    tokenizer = family.tokenizer
    try:
        text = render(template, family.template_variables([turn], add_generation_prompt=True))
    except ValueError as error:
        text = f"({error})"
    prompt = tokenizer(text.removeprefix(tokenizer.bos_token or ""), add_special_tokens=False)
    wanted, found = (
        tokenizer.decode([token for token in ids if token != tokenizer.bos_token_id])
        for ids in (family.tokenize_question(question, has_image), prompt["input_ids"])
    )
    if found != wanted:
        logger.warning(
            "the chat template in the export writes %r, and the model was trained with %r: servers "
            "will use the wrong prompt; override `load_tokenizer` of the family %s, change "
            "`tokenizer.chat_template` there (in a subclass of Chat, `processor.chat_template` in "
            "`load_image_processor`, if it is set), and export again",
            found,
            wanted,
            family.name,
        )


def _greedy(config: Config, family: Family) -> GenerationConfig:
    """Return settings with which ``model.generate`` gives the same answers as ``predict``."""
    if config.predict.max_new_tokens is None:  # the training rows were streamed
        logger.warning(
            "predict.max_new_tokens is not set, and no training answers were measured: without "
            "max_new_tokens, transformers stops the answers of the exported model at 20 tokens"
        )
    start = family.decoder_start_id if family.encoder_decoder else None
    return GenerationConfig(
        do_sample=False,
        max_new_tokens=config.predict.max_new_tokens,
        bos_token_id=family.tokenizer.bos_token_id,
        eos_token_id=family.stop_ids,
        pad_token_id=family.pad_id,
        decoder_start_token_id=start,
    )


def push(run: Path, repo: str, *, private: bool = False, trust_remote_code: bool = False) -> str:
    """Export the model of a run and upload it, with its model card; return its address.

    The repository is created first, if it does not exist, so that a missing login is an error
    before the export. The export is written into the run folder, and deleted after the upload.

    Raises ValueError if the hub cannot be reached, or does not accept the upload.
    """
    read_run(run, trust_remote_code=trust_remote_code)  # raises errors before the repo is created
    api = HfApi()
    with _short_errors(run, repo):
        url = api.create_repo(repo, private=private, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=run, suffix=".unfinished") as folder:
        out = Path(folder, url.repo_name)
        export(run, out, trust_remote_code=trust_remote_code)
        with _short_errors(run, repo):
            api.upload_folder(repo_id=url.repo_id, folder_path=out, commit_message="Upload model")
    return str(url)


@contextmanager
def _short_errors(run: Path, repo: str) -> Iterator[None]:
    """Context manager that replaces errors of the hub with short ValueErrors."""
    try:
        yield
    except OfflineModeIsEnabled:
        raise ValueError(
            f"{repo}: HF_HUB_OFFLINE is set, so nothing can be uploaded; unset it, or run "
            f"`mm-numeric export {run} --out FOLDER` and upload the folder elsewhere."
        ) from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _HUB:
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{repo}: the hub did not accept the upload ({reason}); log in with `hf auth login`, "
            "and name a repository that you may write to, such as USER/NAME."
        ) from error
