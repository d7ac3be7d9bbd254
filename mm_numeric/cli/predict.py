"""The options of ``mm-numeric predict`` for decoding, for a server and for Ray."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_numeric.cli.overview import positive
from mm_numeric.config.compare import Resources
from mm_numeric.config.decoding import DECODE_RULES
from mm_numeric.io.files import read_json
from mm_numeric.io.log import logger
from mm_numeric.settings import read_dataclass, with_override

if TYPE_CHECKING:
    from mm_numeric.api import Predictions
    from mm_numeric.inference.endpoint import Endpoint

_NAMES = (
    "batch_size",
    "tensor_parallel",
    "max_new_tokens",
    "constrain",
    "decode",
    "mass",
    "branches",
    "samples",
)


def add_decoding(predict: argparse.ArgumentParser) -> None:
    """Add the options for generating and decoding answers."""

    def number(name: str, text: str, default: str = "") -> None:
        setting = name.replace("-", "_")
        default = default or f"predict.{setting} of the run's config"
        predict.add_argument(
            f"--{name}", type=positive, metavar="N", help=f"{text} (default: {default})"
        )

    number("batch-size", "batch size in rows")
    number("max-new-tokens", "maximum number of new tokens")
    predict.add_argument(
        "--tensor-parallel",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="under torchrun: the ranks share the weights of one model instead of the rows "
        "(default: predict.tensor_parallel of the run's config)",
    )
    predict.add_argument(
        "--constrain",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="write only answers that match the grammar of the task, so that all are parseable "
        "(default: predict.constrain of the run's config)",
    )
    rule = predict.add_mutually_exclusive_group()
    rule.add_argument(
        "--decode",
        choices=DECODE_RULES,
        help="rule that chooses the answer; mbr is the least expected risk, as the task defines it "
        "(default: predict.decode of the run's config)",
    )
    rule.add_argument(
        "--decode-for",
        metavar="RISK",
        help="choose the answer with the least expected RISK, such as accuracy_at_0.5",
    )
    predict.add_argument(
        "--mass",
        type=float,
        metavar="P",
        help="explore answers until they have the probability P (default: predict.mass of the "
        "run's config)",
    )
    number("branches", "maximum number of different prefixes of an answer to explore")
    number("samples", "number of answers to sample", "predict.samples, or the default of the task")


def add_results(predict: argparse.ArgumentParser) -> None:
    """Add the option for a file of results in the format of another tool."""
    predict.add_argument(
        "--results",
        choices=["coco"],
        help="also write the objects as COCO results, for pycocotools: predictions.coco.json",
    )


def add_endpoint(predict: argparse.ArgumentParser) -> None:
    """Add the options for a server that generates the answers."""
    predict.add_argument(
        "--endpoint",
        metavar="URL",
        help="let a server with an OpenAI-compatible API answer (vLLM, SGLang, transformers serve, "
        "llama.cpp), such as http://localhost:8000/v1; it serves what `mm-numeric export` wrote, "
        "and gets the API key in MM_NUMERIC_API_KEY",
    )
    predict.add_argument("--served-model", metavar="NAME", help="model of --endpoint")
    predict.add_argument(
        "--concurrency",
        type=positive,
        metavar="N",
        help="number of rows that --endpoint gets at the same time (default: 8)",
    )
    add_connection(predict, "--endpoint", 600)


def add_connection(parser: argparse._ActionsContainer, option: str, default_s: int) -> None:
    """Add the options for the proxy and the time limit of the server that ``option`` names."""
    parser.add_argument(
        "--proxy",
        choices=["env"],
        help=f"ask {option} through the proxy of http_proxy or https_proxy, which can read all "
        "that is sent to an http:// URL (default: no proxy)",
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        metavar="SECONDS",
        help=f"time limit for {option} to answer a row; a row is sent at most twice (default: "
        f"{default_s})",
    )


def connection_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the given options of ``add_connection`` as settings of a ``ChatClient``."""
    given = {"timeout_s": arguments.timeout, "use_proxy": None if arguments.proxy is None else True}
    return {name: value for name, value in given.items() if value is not None}


def endpoint_of(arguments: argparse.Namespace) -> "Endpoint | None":
    """Return the server of ``--endpoint``, or None without this option."""
    options = {"model": arguments.served_model, "concurrency": arguments.concurrency}
    given = {name: value for name, value in options.items() if value is not None}
    given |= connection_of(arguments)
    if arguments.endpoint is None:
        if given:
            names = "--served-model, --concurrency, --timeout and --proxy"
            raise ValueError(f"{names} require --endpoint.")
        return None
    if "model" not in given:
        raise ValueError("--endpoint requires --served-model, the name of a model on the server.")
    if arguments.batch_size is not None:
        raise ValueError("--batch-size is for a model that is loaded here; use --concurrency.")
    if arguments.tensor_parallel or arguments.engine == "ray":
        raise ValueError("--tensor-parallel and --engine ray are for a model that is loaded here.")
    from mm_numeric.inference.endpoint import Endpoint

    return Endpoint(url=arguments.endpoint, **given)


def predict_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the section ``predict`` that are given on the command line."""
    given = {name: getattr(arguments, name) for name in _NAMES}
    if arguments.decode_for is not None:
        given["decode"] = {"for": arguments.decode_for}
    return {name: value for name, value in given.items() if value is not None}


def ray_resources(arguments: argparse.Namespace) -> Resources | None:
    """Return what each task of ``--engine ray`` reserves; None with another engine."""
    if arguments.engine != "ray":
        if arguments.resources:
            raise ValueError("--resources requires --engine ray.")
        return None
    if not arguments.resources:
        raise ValueError("--engine ray requires --resources, such as gpus=1 cpus=4.")
    raw: dict[str, Any] = {}
    for override in arguments.resources:
        raw = with_override(raw, override)
    return read_dataclass(Resources, raw, "--resources")


def coco_results(predictions: "Predictions", data: str | None) -> Path:
    """Write the COCO results of ``--results coco``, and return their path.

    The ids of categories are those of the file that ``prepare`` read for the rows in ``data``, the
    test rows of the run by default. Other rows have the ids 1, 2 ... in the order of the classes.
    """
    from mm_numeric.importers.prepare import record_of
    from mm_numeric.inference.coco_results import write_coco_results

    config, ids = predictions.config, dict[str, Any]()
    rows = data or config.data.test.path
    if isinstance(rows, str) and record_of(Path(rows)).is_file():
        ids = read_json(record_of(Path(rows))).get("category_ids") or {}
    if not ids:
        names = getattr(config.task, "classes", ()) or [""]
        ids = {name: i for i, name in enumerate(names, start=1)}
    listed = ", ".join(f"{own} {name or 'object'}" for name, own in ids.items())
    logger.info("ids of categories: %.200s", listed)
    asks_each = getattr(config.task, "ask", "") == "each"
    return write_coco_results(predictions.path, ids, asks_each=asks_each)
