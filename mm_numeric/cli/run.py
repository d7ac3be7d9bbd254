"""``mm-numeric run``: from the data of a config to the report of a trained model."""

import argparse
import shlex
import signal
import sys

from mm_numeric.config.reader import read_config
from mm_numeric.io.log import logger, show


def run(arguments: argparse.Namespace) -> None:
    """Do all steps that are not finished; print the metrics and the path of the report."""
    config = read_config(arguments.config, arguments.overrides)
    # Imported after the config is validated, because they load torch.
    from mm_numeric.api import run as run_steps
    from mm_numeric.distributed.ranks import leave_process_group, num_ranks
    from mm_numeric.evaluation.score_text import results_table
    from mm_numeric.training.errors import StoppedError

    again = f"next: mm-numeric run {shlex.join([arguments.config, *arguments.overrides])}"
    try:
        done = run_steps(config, stoppable=True)
    except StoppedError as error:
        logger.warning("%s", error)
        if error.resumable:
            show(again)
        sys.exit(130 if error.received == signal.SIGINT else 0)
    except (Exception, KeyboardInterrupt) as error:
        if num_ranks() == 1 and not isinstance(error, ValueError):  # repeating it would not help
            error.add_note(again)  # shown after the error message
        raise
    finally:
        leave_process_group()
    if done.scores is not None:
        show(results_table(done.scores))
    show(f"report: {done.report.resolve()}")
