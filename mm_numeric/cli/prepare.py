"""``mm-numeric prepare``: convert a data set to rows, and print a report."""

import argparse
import dataclasses
import shlex
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mm_numeric.api import prepare
from mm_numeric.cli.overview import CommandParser
from mm_numeric.cli.score import SIZES, add_family, add_sizes, read_family
from mm_numeric.config.explain import as_yaml
from mm_numeric.importers.importer import Option
from mm_numeric.importers.prepare import Prepared
from mm_numeric.io.files import add_limit_option, set_limit
from mm_numeric.io.log import show
from mm_numeric.registry import EXPORTERS, IMPORTERS, choose
from mm_numeric.tasks.class_counts import in_words, names_in_words

MAX_LISTED = 20
"""Maximum number of reasons, and of files, in the report; .prepared.json lists all."""

_MEANINGS = {
    ("object", "left out"): " (the rows keep their other objects)",
    ("object", "ignored"): " (kept as regions in which answers are neither right nor wrong)",
}


def report_text(prepared: Prepared) -> str:
    """Format the report of a conversion: counts, what was left out, checksums of the files."""
    record = prepared.record
    counts = [f"{count} {what}" for what, count in record["counts"].items() if count]
    lines = [f"{record['format']}: {', '.join(counts) or 'no rows'}"]
    lines += [f"skipped: {count} {what}" for what, count in record["left_out"].items()]
    if prepared.bad:
        results = Counter(tuple(bad["result"].split(" ", 1)) for bad in record["bad_lines"])
        numbers = (
            f"{n} {what}{'s' * (n > 1)} {done}{_MEANINGS.get((what, done), '')}"
            for (what, done), n in results.items()
        )
        lines.append(f"invalid: {', '.join(numbers)}")
        reasons = record["reasons"]
        lines += [
            f"  {found['count']} {found['kind']} ({found['result']}), first at {found['where']}: "
            f"{found['why']}"
            for found in reasons[:MAX_LISTED]
        ]
        if len(reasons) > MAX_LISTED:
            lines.append(f"  and {len(reasons) - MAX_LISTED} more reasons")
        if record["counts"].get("rows"):
            lines.append(f"  all places: bad_lines in {prepared.out}.prepared.json")
    lines += [f"note: {record['note']}"] if record["note"] else []
    found = {name: count for name, count in record["labels"].items() if count}
    if found:
        lines.append(f"objects: {in_words(found)}")
    if empty := [name for name in record["labels"] if name not in found]:
        number = f"{len(empty)} of {len(record['labels'])}"
        lines.append(f"classes without objects: {number} ({names_in_words(empty, 1000)})")
    files = record["inputs"]
    lines += [f"sha256 {file['sha256']}  {file['path']}" for file in files[:MAX_LISTED]]
    if len(files) > MAX_LISTED:
        lines.append(f"  and {len(files) - MAX_LISTED} more files in {prepared.out}.prepared.json")
    if not record["counts"].get("rows"):
        what = "object" if any("object" in bad["result"] for bad in record["bad_lines"]) else "row"
        lines.append(f"no {what} could be converted; {prepared.out} is not written.")
    else:
        lines.append(f"sha256 {record['output']['sha256']}  {prepared.out}")
        lines += _config_lines(prepared)
        lines += [prepared.usage] if prepared.usage else []
    return "\n".join(line.replace("\n", r"\n") for line in lines)  # line breaks in file names


def _config_lines(prepared: Prepared) -> list[str]:
    """Return overrides to copy: the settings to train on the rows, and to test on them."""
    options, task = prepared.record["options"], prepared.record["task"]
    images = options.get("images") or options.get("frames")  # frames: images of videos
    source = {"path": str(prepared.out), "images": images}
    rows = {name: value for name, value in source.items() if value}
    settings = {"data.train": rows, "task": {"name": task} if isinstance(task, str) else task or {}}
    words = prepared.record["counts"].get("texts")
    return [
        *(["task.name=text_spotting trains the texts of the words, too"] if words else []),
        f"settings to train on these rows: {_overrides(settings)}",
        f"settings to test on these rows: {_overrides({'data.test': rows})}",
    ]


def _overrides(sections: Mapping[str, Mapping[str, Any]]) -> str:
    return shlex.join(
        f"{section}.{name}={as_yaml(value)}"
        for section, settings in sections.items()
        for name, value in settings.items()
    )


def run(name: str, words: Sequence[str]) -> bool:
    """Convert files of the format ``name``, with the options in ``words``, and print a report.

    Returns False if no row could be converted.
    """
    kind = choose(name, IMPORTERS, "format", "prepare")
    arguments = _parser(name, kind).parse_args(words)
    set_limit(arguments)
    options = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(kind)}
    flags = {name: getattr(arguments, name) for name in ("clip", "strict", "force")}
    flags["to"] = _target(arguments, options)
    prepared = prepare(name, arguments.inputs, arguments.out, **flags, **options)
    show(report_text(prepared))
    return bool(prepared.record["counts"].get("rows"))


def _target(arguments: argparse.Namespace, options: Mapping[str, Any]) -> Any:
    """Return the tool of ``--to``, which the rows are also written for; None without ``--to``."""
    if SIZES[0] in options:  # these options describe the input, not the output
        arguments = argparse.Namespace(**{**vars(arguments), **dict.fromkeys(SIZES)})
    frame, task_options = read_family(arguments)
    if arguments.to is None:
        if frame is not None or task_options:
            raise ValueError(
                "--family, --frame and --option are for rows of another tool; add --to."
            )
        return None
    from mm_numeric.importers.export import Target

    folder = options.get("images") or options.get("frames")  # frames: images of videos
    if "images" not in options and folder is None:  # image paths relative to the data set (YOLO)
        folder = arguments.inputs[0] if arguments.inputs[0].is_dir() else arguments.inputs[0].parent
    images = None if folder is None else str(folder)
    return Target(tool=arguments.to, frame=frame, options=task_options, images=images)


def _add_target(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    group = parser.add_argument_group(
        "rows of another tool",
        "Also write the data set that another tool trains on, in the coordinates of a model "
        "family, next to the rows: for rows.jsonl in rows.TOOL.",
    )
    group.add_argument("--to", choices=EXPORTERS, metavar="TOOL", help=", ".join(EXPORTERS))
    add_family(group, "that the tool trains", "that it trains")
    if SIZES[0] not in names:
        add_sizes(group)


def _parser(name: str, kind: type) -> argparse.ArgumentParser:
    parser = CommandParser(prog=f"mm-numeric prepare {name}", description=kind.__doc__)
    parser.add_argument("inputs", nargs="+", type=Path, metavar="INPUT", help="file or folder")
    parser.add_argument("--out", type=Path, required=True, help="output file, ending in .jsonl")
    parser.add_argument("--clip", action="store_true", help="clip shapes to their images")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="stop at the first invalid object or line, instead of leaving it out",
    )
    parser.add_argument("--force", action="store_true", help="replace existing output files")
    add_limit_option(parser)
    _add_target(parser, [field.name for field in dataclasses.fields(kind)])
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, option = hints[field.name], Option("")
        if typing.get_origin(hint) is typing.Annotated:
            hint, option = typing.get_args(hint)
        flag = f"--{field.name.replace('_', '-')}"
        if hint is bool:
            parser.add_argument(flag, action="store_true", help=option.meaning)
            continue
        required = field.default is dataclasses.MISSING
        parser.add_argument(
            flag,
            type=(typing.get_args(hint) or (hint,))[0],
            required=required,
            default=None if required else field.default,
            choices=option.choices,
            metavar=option.name,
            help=option.meaning,
        )
    return parser
