"""Write the report of a comparison or of a single run as an HTML page, Markdown, LaTeX or CSV.

Reads    comparison: summary.json and, if they exist, log.jsonl, scores.jsonl and results.json of
         each run
         run: config.yaml and, if they exist, run.json, log.jsonl, scores.jsonl and results.json
Writes   the files of ``FORMATS``: LaTeX has all tables, CSV has the table of all metrics. With
         HTML, also sweeps.csv (data of the figures of grid axes) and trials.csv (all trials of
         ``compare.tune``)

A task can add sections: its attribute ``report_sections`` names functions that return them.
"""

import base64
import hashlib
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path

from mm_numeric.evaluation.report.comparison_page import comparison_page
from mm_numeric.evaluation.report.page import Page
from mm_numeric.evaluation.report.results import read_comparison
from mm_numeric.evaluation.report.run_page import read_results, run_page
from mm_numeric.evaluation.report.summary_file import DAMAGED, SUMMARY, read_summary
from mm_numeric.io.files import stored_content, write_text
from mm_numeric.io.local_server import LocalHandler, local_server
from mm_numeric.registry import unknown
from mm_numeric.runs.folder import CONFIG, LOG, RESULTS, decoded_name
from mm_numeric.runs.results_file import check_complete

FORMATS = {"html": "report.html", "md": "report.md", "latex": "report.tex", "csv": "report.csv"}
"""Maps each format of a report to the name of the file."""


def is_comparison(folder: Path) -> bool:
    """Return True for the output folder of ``compare``, False for the folder of a run.

    Raises ValueError for other folders, and for a comparison that is not finished.
    """
    if (folder / SUMMARY).is_file():
        return True
    if not (folder / CONFIG).is_file():
        raise ValueError(
            f"{folder} contains neither summary.json of a comparison nor config.yaml of a run; "
            "name the output folder of `mm-numeric compare` or `mm-numeric train`."
        )
    if any(folder.glob("seed*")) and not (folder / LOG).is_file():
        raise ValueError(
            f"{folder} contains a comparison that is not finished. Run `mm-numeric compare` again, "
            "or name the folder of one of its runs."
        )
    return False


def check_all_answered(folder: Path, *, partial: bool) -> None:
    """Raise ValueError if some test rows are not scored yet; with ``partial``, log a warning."""
    if is_comparison(folder):
        found = {folder / SUMMARY: read_summary(folder)}
        cure = "the other test rows have no answer; see `mm-numeric compare`"
    else:
        found = {
            folder / decoded_name(RESULTS, rule): own
            for rule, sections in read_results(folder).items()
            for own in sections.values()
        }
        cure = "let `mm-numeric predict` answer the others, and score again"
    for path, own in found.items():
        check_complete(own["rows"], own["rows_due"], f"{path}: {cure}", partial=partial)


def read_page(folder: Path, *, trust_remote_code: bool = False) -> Page:
    """Return the report of the comparison or run in a folder, without writing files."""
    if is_comparison(folder):
        with stored_content(folder / SUMMARY, DAMAGED):
            return comparison_page(read_comparison(folder), trust_remote_code=trust_remote_code)
    return run_page(folder, trust_remote_code=trust_remote_code)


def table_text(
    folder: Path, name: str, form: str | None, *, trust_remote_code: bool = False
) -> str:
    """Return one table of a report as text in the format ``form``: md, latex or csv."""
    if form not in ("md", "latex", "csv"):
        raise ValueError("--table prints one table; add --format md, latex or csv.")
    tables = read_page(folder, trust_remote_code=trust_remote_code).tables
    if name not in tables:
        raise unknown(name, tables, "table", f"{folder}, the report")
    table = tables[name]
    texts = {"md": table.to_markdown, "latex": table.to_latex, "csv": table.to_csv}
    return texts[form]().rstrip("\n")


def write_report(
    folder: Path, formats: Sequence[str] = ("html", "md"), *, trust_remote_code: bool = False
) -> tuple[Path, ...]:
    """Write the report of a comparison or of a run, and return the paths of the written files.

    Args:
        folder: The output folder of ``compare`` or ``train``. The report is saved there.
        formats: Any of ``html``, ``md``, ``latex`` and ``csv``.
        trust_remote_code: Import the task if the folder names it by an import path, such as
            ``my_tasks:Compass``. Otherwise the sections of that task are left out.
    """
    folder = Path(folder)
    page = read_page(folder, trust_remote_code=trust_remote_code)
    texts = {"html": page.to_html, "md": page.to_markdown, "latex": page.to_latex}
    texts["csv"] = page.metrics.to_csv
    paths = []
    for name in formats:
        paths.append(folder / FORMATS[name])
        write_text(paths[-1], texts[name]())
    for name, table in page.data_files.items() if "html" in formats else ():
        paths.append(folder / name)
        write_text(paths[-1], table.to_csv())
    return tuple(paths)


SECONDS = 10  # time between two refreshes of the page


_SCRIPT = """
setInterval(async () => {
  const text = await (await fetch("/")).text().catch(() => "");
  const found = new DOMParser().parseFromString(text, "text/html");
  if (!found.querySelector("main")) return;
  const open = [...document.querySelectorAll("details")].map((own) => own.open);
  found.querySelectorAll("details").forEach((own, i) => { own.open = open[i] ?? false; });
  document.body.replaceChildren(...found.body.childNodes);
}, SECONDS * 1000);
""".replace("SECONDS", str(SECONDS))
_POLICY = "default-src 'none';"


def _refreshed(page: str) -> str:
    """Add a script that refreshes the page, and a security policy that allows no other script."""
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = f"{_POLICY} script-src 'sha256-{digest}'; connect-src 'self';"
    without = f'<noscript><meta http-equiv="refresh" content="{SECONDS}"></noscript>'
    page = str(page).replace(_POLICY, policy, 1)  # str, because Markup would escape the policy
    return page.replace("</head>", f"{without}<script>{_SCRIPT}</script></head>", 1)


def page_server(make: Callable[[], str], port: int) -> ThreadingHTTPServer:
    """Return a server with a single page; ``make`` returns its text for each request.

    A script in the page replaces its content every 10 seconds. If scripts are disabled, the browser
    reloads the page. If ``make`` fails, the page shows the error message.
    """

    class Handler(LocalHandler):
        def do_GET(self) -> None:  # noqa: N802  (its name in http.server)
            if self.path != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            status, kind = HTTPStatus.OK, "html"
            try:
                text = _refreshed(make())
            except (ValueError, OSError) as error:
                status, kind, text = HTTPStatus.INTERNAL_SERVER_ERROR, "plain", str(error)
            again = {"Refresh": str(SECONDS)} if kind == "plain" else {}
            self.reply(status, kind, text, again)

    return local_server(Handler, port)
