"""Measures a training whose compute is a sleep. Variables: FAULT (none, backward, input), SECONDS, DB."""
import os, time, torch, torch.distributed as dist
# run with PYTHONPATH=scripts
from hvdb.torch_efficiency import measure
dist.init_process_group("gloo")
torch.set_num_threads(1)
rank, fault = dist.get_rank(), os.environ.get("FAULT", "none")
class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.seconds = backward
        time.sleep(forward)
        return x.view_as(x)
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None, None
class Layer(torch.nn.Module):
    def __init__(self, width, late=0.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width, 64) / 100)
        self.late = late
    def forward(self, x):
        return Sleep.apply(x, 0.02, 0.04 + self.late) + self.weight.sum() * 1e-6
late = 0.2 if fault == "backward" and rank == 1 else 0.0
net = torch.nn.Sequential(*(Layer(int(os.environ.get("WIDTH", "8192")), late if i == 1 else 0.0) for i in range(5)))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
def batches():
    while True:
        if fault == "input": time.sleep(0.16)  # a third of the step
        yield torch.ones(8, 4)
print(measure(model, batches(), lambda model, x: model(x).mean(), optimizer, os.environ.get("DB", "slept.db"), unit="sequences", name="slept", seconds=float(os.environ.get("SECONDS", "40"))), end="")
