"""What the engines of clusters have in common: the resources and the failure of a run."""

from mm_numeric.comparison.run import RunFailedError
from mm_numeric.config.compare import Resources
from mm_numeric.config.schema import Config


def required_resources(config: Config, engine: str) -> Resources:
    """Return what each run asks for; raise ValueError if the config does not say it."""
    assert config.compare is not None
    if config.compare.resources is None:
        raise ValueError(
            f"{config.title}, compare.resources: --engine {engine} reserves resources for each "
            "run; set them, such as {gpus: 1, cpus: 4, memory_gib: 16}."
        )
    return config.compare.resources


def run_failed(name: str, error: BaseException) -> RunFailedError:
    """Return the error to raise for a run that has failed in another process."""
    code = 2 if isinstance(error, ValueError) else 1
    message = str(error).strip() or type(error).__name__
    return RunFailedError(
        f"{name} failed: {message} Finished runs are kept; run compare again to continue.", code
    )
