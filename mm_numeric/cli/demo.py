"""``mm-numeric demo``: serve the page on which a model answers questions about dropped images."""

import argparse
import sys
from contextlib import suppress

from mm_numeric.io.local_server import HOST
from mm_numeric.io.log import show


def demo(arguments: argparse.Namespace) -> None:
    """Serve the page of a run until Ctrl-C."""
    from mm_numeric.evaluation.report.demo import demo_server
    from mm_numeric.inference.ask import LoadedRun

    run = LoadedRun(arguments.model, trust_remote_code=arguments.trust_remote_code)
    with demo_server(run, arguments.port) as server, suppress(KeyboardInterrupt):
        url = f"http://{HOST}:{server.server_port}/"
        show(f"demo: {url}, for the browsers of this machine; Ctrl-C ends it")
        sys.stdout.flush()
        server.serve_forever()
