"""Measures a training, or records the step of one rank: torchrun training.py resnet50|gpt FILE.db, python training.py resnet50|gpt FILE.replay"""

import importlib.util
import os
import sys

import torch
from torch import distributed, nn

from hvdb.torch_efficiency import measure
from hvdb.torch_profile import record


def gpt_example():
    """Returns docs/examples/torch/gpt.py, whose folder is in the variable EXAMPLES."""
    spec = importlib.util.spec_from_file_location("gpt", os.path.join(os.environ["EXAMPLES"], "gpt.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def training(name):
    """Returns the model, a loader without end, the loss, and the unit of a batch and how many there are in it."""
    if name == "gpt":  # 30,352,128 parameters
        gpt = gpt_example()
        model = gpt.Gpt(layers=6, width=384, heads=6)
        return model, lambda: torch.randint(50257, (4, 65)), gpt.next_token_loss, "sequences", 4
    from torchvision.models import resnet50

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return resnet50(), lambda: (torch.randn(4, 3, 96, 96), torch.randint(1000, (4,))), loss, "images", 4


def main(name, file):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model, batch, loss, unit, units = training(name)
    if file.endswith(".replay"):
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        print(record(model, batch(), loss, file, optimizer=optimizer, unit=unit, units=units, name=name))
        return
    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batches = iter(batch, None)
    print(measure(model, batches, loss, optimizer, file, unit=unit, units=units, name=name, seconds=float(os.environ["SECONDS_EACH"])), end="")
    distributed.destroy_process_group()


main(*sys.argv[1:])
