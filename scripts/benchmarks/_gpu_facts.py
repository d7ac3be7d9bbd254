"""Versions, device and commit on which the results of a benchmark depend."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from _measure import processor

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
PACKAGES = (
    "transformers",
    "accelerate",
    "peft",
    "trl",
    "deepspeed",
    "triton",
    "liger-kernel",
    "cut-cross-entropy",
    "flash-attn",
)
NOT_INSTALLED = "not installed"

PEAK_TFLOPS = {
    "B200": 2250.0,
    "GH200": 989.0,
    "H200 NVL": 835.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "L4": 121.0,
    "A10G": 70.0,
    "RTX 4090": 165.2,
}
"""Dense bf16 matrix products with float32 sums, in TFLOP/s, from NVIDIA's data sheets.

The first entry that is part of the device's name is used.
"""


def facts(_: str, device: str) -> dict[str, object]:
    """Return versions and device; run in a process of its own, because it initialises CUDA."""
    found: dict[str, object] = {
        "device": processor(),
        "memory_gib": None,
        "driver": None,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        **{name: installed_version(name) for name in PACKAGES},
    }
    if device == "cuda":
        found["device"] = torch.cuda.get_device_name()
        found["memory_gib"] = round(torch.cuda.mem_get_info()[1] / GIB, 1)
        found["driver"] = driver_version()
    found["peak_tflops"] = peak_tflops(str(found["device"])) if device == "cuda" else None
    return found


def installed_version(package: str) -> str:
    """Return the version of a package, or ``not installed``."""
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED


def peak_tflops(device: str) -> float | None:
    """Return the peak of a GPU in TFLOP/s, or None for one that is not in the table."""
    matches = (peak for name, peak in PEAK_TFLOPS.items() if _names(device, name))
    return next(matches, None)


def _names(device: str, name: str) -> bool:
    """Return True if all words of a name are words of a device name, such as A100-SXM4-80GB."""
    words = device.replace("-", " ").split()
    return all(word in words for word in name.split())


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver, or None if nvidia-smi does not report it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return _first_line(command)


def commit() -> str:
    """Return the commit of this checkout, with ``-dirty`` if tracked files were changed."""
    found = _first_line(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"])
    changed = _first_line(["git", "-C", str(ROOT), "status", "--porcelain", "-uno"])
    return (found or "unknown") + ("-dirty" if changed else "")


def _first_line(command: list[str]) -> str | None:
    """Return the first line that a command prints; None if it fails or prints nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.splitlines()), None)
