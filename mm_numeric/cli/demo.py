"""``mm-numeric demo``: serve the page on which a model answers questions about dropped images."""

import argparse
import sys
from contextlib import suppress
from http.server import ThreadingHTTPServer

from mm_numeric.io.local_server import HOST
from mm_numeric.io.log import show


def serve(server: ThreadingHTTPServer, what: str, note: str) -> None:
    """Print the address of a page, and serve it until Ctrl-C."""
    with server, suppress(KeyboardInterrupt):
        show(f"{what}: http://{HOST}:{server.server_port}/ ({note}; Ctrl-C ends it)")
        sys.stdout.flush()
        server.serve_forever()


def demo(arguments: argparse.Namespace) -> None:
    """Load the model of a run, and serve the page until Ctrl-C."""
    from mm_numeric.evaluation.report.demo import demo_server
    from mm_numeric.inference.ask import LoadedRun

    run = LoadedRun(arguments.model, trust_remote_code=arguments.trust_remote_code)
    serve(demo_server(run, arguments.port), "demo", "for the browsers of this machine")
