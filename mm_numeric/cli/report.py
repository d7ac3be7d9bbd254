"""``mm-numeric report``: write the report of a run or of a comparison, or serve it."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mm_numeric.api import report as write_files
from mm_numeric.cli.demo import serve
from mm_numeric.evaluation.report.comparison_page import terminal_text
from mm_numeric.evaluation.report.report import (
    SECONDS,
    check_all_answered,
    is_comparison,
    page_server,
    read_page,
    table_text,
)
from mm_numeric.evaluation.report.results import read_comparison
from mm_numeric.evaluation.report.summary_file import DAMAGED, SUMMARY
from mm_numeric.io.files import stored_content
from mm_numeric.io.log import show
from mm_numeric.runs.folder import CONFIG


def report(arguments: argparse.Namespace) -> None:
    """Write the report; or serve it (``--watch``), or print its summary or one of its tables."""
    folder, form, trust = arguments.folder, arguments.format, arguments.trust_remote_code
    if arguments.watch:
        _watch(arguments)
        return
    if arguments.summary:
        check_all_answered(folder, partial=arguments.partial)
        show(read_page(folder, trust_remote_code=trust).to_summary())
    elif arguments.table:
        check_all_answered(folder, partial=arguments.partial)
        show(table_text(folder, arguments.table, form, trust_remote_code=trust))
    else:
        formats = [form] if form else ["html", "md"]
        show_report(folder, formats, trust_remote_code=trust, partial=arguments.partial)


def show_report(
    folder: Path, formats: Sequence[str] = ("html", "md"), *, trust_remote_code: bool, partial: bool
) -> None:
    """Write a report in each format; print the table of a comparison, and the file paths.

    Without ``partial``, raise ValueError if some test rows have no answer.
    """
    compared = is_comparison(folder)
    with (
        stored_content(folder / SUMMARY, DAMAGED)
        if compared
        else stored_content(folder / CONFIG, "restore it and what is next to it")
    ):
        check_all_answered(folder, partial=partial)
        if compared:
            show(terminal_text(read_comparison(folder)))
        paths = write_files(folder, formats, trust_remote_code=trust_remote_code)
    for index, path in enumerate(paths):
        show(f"{'' if index else 'report:':<7} {path.resolve()}")


def _watch(arguments: argparse.Namespace) -> None:
    folder, trust = arguments.folder, arguments.trust_remote_code
    is_comparison(folder)  # raises for other folders, before the server starts
    server = page_server(
        lambda: read_page(folder, trust_remote_code=trust).to_html(), arguments.port
    )
    serve(server, "report", f"updated every {SECONDS} seconds")
