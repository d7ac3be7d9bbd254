"""Train the documented ``ModelWithLoss`` alone, under DDP and under FSDP2; run by each rank."""

from pathlib import Path

import torch
import torch.distributed as dist
from documents import blocks
from safetensors.torch import save_file
from tiny_integrations import COLLATE, NUMBERS, rows
from tiny_models import tiny_causal_lm
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from mm_numeric import NumericLoss

RANKS, STEPS, ROWS = 2, 3, 4


def documented_class() -> type[torch.nn.Module]:
    """Return the class ``ModelWithLoss`` of the documentation, which trains ``ntil_soft``."""
    page = blocks("docs/quickstarts/training-loop.md", "python")
    (block,) = (block for block in page if "class ModelWithLoss" in block)
    names = {"loss_of": NumericLoss("ntil_soft", vocabulary=NUMBERS)}
    exec(block[: block.index("with_loss =")], names)
    return names["ModelWithLoss"]


def train(form: str, ranks: list[int]) -> dict[str, torch.Tensor]:
    """Train a tiny model, and return its weights.

    ``form`` is ``plain``, ``ddp`` or ``fsdp``. ``ranks`` are those whose rows this process trains
    on; the loss is their mean, as the average of the gradients over the ranks.
    """
    model = tiny_causal_lm()
    with_loss = documented_class()(model)
    if form == "ddp":
        with_loss = DistributedDataParallel(with_loss)
    elif form == "fsdp":
        mesh = init_device_mesh("cpu", (RANKS,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(with_loss, mesh=mesh)
    optimizer = torch.optim.AdamW(with_loss.parameters(), lr=1e-2, weight_decay=0.0)
    data = list(rows())
    for step in range(STEPS):
        starts = [ROWS * (RANKS * step + rank) for rank in ranks]
        losses = [with_loss(**COLLATE(data[start : start + ROWS])) for start in starts]
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().contiguous()
        for name, value in model.named_parameters()
    }


def main(arguments: list[str]) -> None:
    """Train under DDP and FSDP2 on all ranks, and write the weights."""
    dist.init_process_group("gloo")
    for form in ("ddp", "fsdp"):
        weights = train(form, [dist.get_rank()])
        if dist.get_rank() == 0:
            save_file(weights, Path(arguments[0], f"{form}.safetensors"))
    dist.destroy_process_group()
