"""Records ResNet-50 in PyTorch and with hvd_bench in turns, and compares when gradients are ready.

Run with PyTorch's Python and PYTHONPATH=scripts: python resnet50.py PATH_OF_HVD_BENCH PIXELS ROUNDS STEPS FOLDER
[LAYOUT], where LAYOUT is contiguous_format (PyTorch's default) or channels_last.
"""

import statistics
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from hvdb.torch_profile import record
from maintain.peerbench import networks

BATCH = 4


def shares(file: Path) -> list[float]:
    """Returns when each gradient was ready, as a share of the time from the end of forward to the end of backward."""
    lines = [line.split() for line in file.read_text().splitlines()]
    head = {words[0]: words[1] for words in lines if words[0] != "gradient"}
    begin, end = float(head["forward_seconds"]), float(head["backward_end_seconds"])
    return [(float(words[3]) - begin) / (end - begin) for words in lines if words[0] == "gradient"]


def sizes(file: Path) -> list[int]:
    """Returns the number of elements of each gradient."""
    lines = [line.split() for line in file.read_text().splitlines()]
    return [int(words[1]) for words in lines if words[0] == "gradient"]


def main() -> None:
    """Records in turns and prints the comparison."""
    program, pixels, rounds, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[5])
    steps, layout = int(sys.argv[4]), getattr(torch, (sys.argv[6:] or ["contiguous_format"])[0])
    torch.set_num_threads(1)
    model = networks.checked_network("resnet50", pixels).to(memory_format=layout)
    images = torch.randn(BATCH, 3, pixels, pixels).to(memory_format=layout)
    labels = torch.randint(1000, (BATCH,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    theirs, ours = [], []
    for number in range(rounds):
        file, own = folder / f"pytorch-{number}.replay", folder / f"own-{number}.replay"
        made = {"unit": "images", "units": BATCH, "name": "resnet50", "optimizer": optimizer, "steps": steps}
        print(record(model, images, lambda m, x: nn.functional.cross_entropy(m(x), labels), file, **made))
        words = f"--model resnet50 --batch-size {BATCH} --image-size {pixels} --threads 1 --num-warmup-batches 3"
        words += f" --num-iters {steps} --no-db --quiet --record-replay {own}"
        subprocess.run([program, *words.split()], check=True)
        theirs.append(shares(file))
        ours.append(shares(own))
    left, right = sizes(file), sizes(own)
    unlike = [(i, a, b) for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b]
    print("gradients that differ in size:", unlike)
    middle = [[statistics.median(column) for column in zip(*side, strict=True)] for side in (theirs, ours)]
    differences = [a - b for a, b in zip(*middle, strict=True)]
    size = [abs(100 * d) for d in differences]
    worst = max(range(len(size)), key=size.__getitem__)
    print(f"shares of backward, medians of {rounds} rounds: mean difference {statistics.mean(size):.1f} points")
    a, b = middle[0][worst], middle[1][worst]
    print(f"largest difference: {size[worst]:.1f} points at gradient {worst} of {len(size)} ({a:.3f} and {b:.3f})")
    for side, name in ((theirs, "PyTorch"), (ours, "hvd_bench")):
        spread = [100 * (max(column) - min(column)) for column in zip(*side, strict=True)]
        print(f"{name}: rounds differ by {statistics.mean(spread):.1f} points in the mean, at most {max(spread):.1f}")
    print("gradient  share in PyTorch  share in hvd_bench")
    for i in range(0, len(size), 16):
        print(f"{i:8d}  {middle[0][i]:16.3f}  {middle[1][i]:18.3f}")


if __name__ == "__main__":
    main()
