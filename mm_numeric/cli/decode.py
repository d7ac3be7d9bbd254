"""The command ``mm-numeric decode``: one answer of several texts of each question."""

import argparse
import shlex
from pathlib import Path

from mm_numeric.cli.score import add_joined_rows, prepared_rows
from mm_numeric.config.decoding import MBR, check_decode
from mm_numeric.io.log import show

_RULES = ("mean", "median", MBR)


def add_decode_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``decode``."""
    parser.add_argument(
        "answers",
        type=Path,
        help="file with several texts of each question: rows with the same id, or a list `texts`, "
        "with optional `weights` or `logprobs`; or a file of another tool",
    )
    parser.add_argument(
        "--rule",
        choices=_RULES,
        default=MBR,
        help="rule that chooses the answer: mean (least squared error), median (least absolute "
        "error), or mbr (least expected risk; default)",
    )
    parser.add_argument(
        "--for",
        dest="risk",
        metavar="RISK",
        help="risk of mbr, such as accuracy_at_0.5 (default: that of the task)",
    )
    parser.add_argument(
        "--task", help="name of the task, or an import path such as my_tasks:Thermometer"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="predictions file to write (default: ANSWERS.RULE.jsonl)",
    )
    add_joined_rows(parser, required=True)


def decode_answers(arguments: argparse.Namespace) -> None:
    """Decode answers, and write a predictions file."""
    path, rule, risk = arguments.answers, arguments.rule, arguments.risk
    if risk is not None:
        if rule != MBR:
            raise ValueError(f"--for is the risk of --rule {MBR}, and the rule is {rule}.")
        check_decode({"for": risk})
    out = arguments.out or path.with_name(f"{path.stem}.{rule}.jsonl")
    if out.suffix != ".jsonl" or out.resolve() == path.resolve():
        raise ValueError(f"--out {out}: name another file, which ends in .jsonl.")
    from mm_numeric.evaluation.answers.several_texts import decode_texts
    from mm_numeric.evaluation.answers.source import AnswerSource

    source = AnswerSource(predictions=path, task_name=arguments.task, partial=arguments.partial)
    found = decode_texts(source, prepared_rows(arguments), out, rule, risk)
    show(f"{found.answers} answers of {found.texts} texts ({found.parsed} parsed): {out}")
    partial = " --partial" if arguments.partial else ""
    # The rows of the file name the task, unless it is an import path.
    named = arguments.task is not None and ":" in arguments.task
    task = f" --task {arguments.task}" if named else ""
    show(f"next: mm-numeric score {shlex.quote(str(out))}{task}{partial}")
