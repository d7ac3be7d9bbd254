"""Export the model of a finished run as a folder that transformers can load."""

from dataclasses import replace
from pathlib import Path

from transformers import GenerationConfig

from mm_numeric.config.schema import Config, read_baseline
from mm_numeric.families.family import Family
from mm_numeric.io.atomic_files import atomic_folder, reject_link
from mm_numeric.io.files import read_json, stored_content
from mm_numeric.io.log import logger
from mm_numeric.models.adapters import merged
from mm_numeric.models.loading import load_family, load_model, quiet_unless_terminal
from mm_numeric.models.model_card import CARD, CardResults, model_card
from mm_numeric.models.precision import Precision
from mm_numeric.runs.folder import FINISHED, MODEL, RESULTS, locked, read_run
from mm_numeric.runs.results import SCORE_AGAIN, read_sections


def export(run: Path, out: Path, *, trust_remote_code: bool = False) -> None:
    """Save the model of a finished run, with tokenizer and model card, in a new folder.

    The folder also contains the image processor and the settings for image size and coordinates.
    Adapters are merged into the weights without changing their dtype. If the model was quantised
    for training, adapters are merged into the original weights. A run that trained a published
    baseline method, such as xVal, cannot be exported: transformers has no class for its model.
    Set ``trust_remote_code`` if the run needs custom code, of its config or its checkpoint.
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
    """Save the model of a run (adapters merged), its tokenizer and its model card in a folder."""
    precision = Precision.of_run(run)
    config = precision.of_weights(replace(config, model=replace(config.model, quantize=None)))
    family = load_family(config, str(run / MODEL))
    model = merged(load_model(config, family, str(run / MODEL)))
    model.generation_config = _greedy(config, family)
    model.save_pretrained(folder)
    family.save(folder)
    facts = read_json(run / FINISHED)
    path = run / RESULTS
    with stored_content(path, SCORE_AGAIN):
        results = CardResults(read_sections(path) if path.is_file() else {})
    with stored_content(run / FINISHED):
        card = model_card(config, family, model, precision, facts, results, name)
    (folder / CARD).write_text(card, encoding="utf-8")


def _greedy(config: Config, family: Family) -> GenerationConfig:
    """Return settings of ``model.generate`` for the same answers as ``predict``."""
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
