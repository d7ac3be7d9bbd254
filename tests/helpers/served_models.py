"""``transformers serve`` with a tiny Qwen2.5-VL, in a process of its own."""

import sys
import time
import urllib.request
from pathlib import Path

from ports import free_port
from processes import Job


class ServedModel:
    """A server of an exported model, which can be killed and started again on the same port."""

    def __init__(self, exported: Path) -> None:
        self.model, self.port = str(exported), free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.start()

    def start(self) -> None:
        """Start the server, and return when it has loaded the model."""
        words = [self.model, "--host", "127.0.0.1", "--port", str(self.port), "--device", "cpu"]
        self.job = Job(_serve, words, Path(f"{self.model}.server.txt"))
        deadline = time.monotonic() + 60
        while not self._is_ready():
            assert self.job.running, self.job.text()
            assert time.monotonic() < deadline, self.job.text()
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the server, as kill -9 does."""
        self.job.kill()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                return True
        except OSError:
            return False


def _serve(words: list[str]) -> None:
    """Do what ``transformers serve WORDS`` does."""
    from transformers import Qwen2_5_VLProcessor
    from transformers.cli.transformers import main

    # Without the video processor: it needs torchvision, which torch for the CPU has not.
    Qwen2_5_VLProcessor.get_attributes = classmethod(lambda _: ["image_processor", "tokenizer"])
    sys.argv = ["transformers", "serve", *words]
    main()
