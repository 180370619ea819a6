"""The networks of models/zoo in PyTorch, and their labels. The networks are defined here because torchvision is often
missing where PyTorch is installed. Before anything is timed, their parameter counts are compared with the published
counts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

PUBLISHED_PARAMETERS = {"vgg16": 138_357_544, "resnet50": 25_557_032, "resnet101": 44_549_160, "inception3": 23_834_568}
DEFAULT_IMAGE = {"vgg16": 224, "resnet50": 224, "resnet101": 224, "inception3": 299}
CLASSES = 1000
Size = int | tuple[int, int]
LEARNING_RATE = 1e-3  # bench/micro/training_bench.h


def vgg16(image: int) -> nn.Module:
    """VGG-16 (configuration D, without batch normalisation)."""
    layers: list[nn.Module] = []
    channels = 3
    for stage, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            layers += [nn.Conv2d(channels, stage, 3, padding=1), nn.ReLU(inplace=True)]
            channels = stage
        layers.append(nn.MaxPool2d(2))
    grid = image // 32
    head: list[nn.Module] = [nn.Flatten(), nn.Linear(512 * grid * grid, 4096), nn.ReLU(inplace=True), nn.Dropout()]
    head += [nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, CLASSES)]
    return nn.Sequential(*layers, *head)


def layer(
    inputs: int, outputs: int, kernel: Size, stride: int, padding: Size, epsilon: float = 1e-5
) -> list[nn.Module]:
    """Convolution, batch normalisation, ReLU."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False)
    return [convolution, nn.BatchNorm2d(outputs, eps=epsilon), nn.ReLU(inplace=True)]


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolutions, and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        body = layer(inputs, width, 1, 1, 0) + layer(width, width, 3, stride, 1)
        body += layer(width, outputs, 1, 1, 0)
        self.body = nn.Sequential(*body[:-1])  # the last ReLU follows the sum
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(*layer(inputs, outputs, 1, stride, 0)[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.body(x) + self.shortcut(x))


def resnet(blocks: tuple[int, int, int, int]) -> nn.Module:
    """ResNet with bottleneck blocks (50: 3, 4, 6, 3; 101: 3, 4, 23, 3)."""
    layers = [*layer(3, 64, 7, 2, 3), nn.MaxPool2d(3, stride=2, padding=1)]
    channels, width = 64, 64
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(Bottleneck(channels, width, 2 if stage > 0 and block == 0 else 1))
            channels = 4 * width
        width *= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def unit(inputs: int, outputs: int, kernel: Size, stride: int = 1, same: bool = True) -> nn.Module:
    """A layer of Inception V3."""
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (height // 2, width // 2) if same and stride == 1 else 0
    return nn.Sequential(*layer(inputs, outputs, (height, width), stride, padding, 1e-3))


class Branches(nn.Module):
    """Runs every branch on the same input and concatenates the branches' channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def pooled(inputs: int, outputs: int) -> nn.Module:
    """Average pooling, then a unit."""
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False), unit(inputs, outputs, 1))


def chain(inputs: int, *steps: tuple[int, Size, int]) -> nn.Sequential:
    """Returns a chain of units. Each of `steps` describes a unit as (outputs, kernel, stride)."""
    layers = []
    for outputs, kernel, stride in steps:
        layers.append(unit(inputs, outputs, kernel, stride))
        inputs = outputs
    return nn.Sequential(*layers)


def inception3() -> nn.Module:
    """Inception V3 without the auxiliary head."""

    def block_a(c: int, pool: int) -> nn.Module:
        return Branches(
            unit(c, 64, 1),
            chain(c, (48, 1, 1), (64, 5, 1)),
            chain(c, (64, 1, 1), (96, 3, 1), (96, 3, 1)),
            pooled(c, pool),
        )

    def block_c(w: int) -> nn.Module:
        return Branches(
            unit(768, 192, 1),
            chain(768, (w, 1, 1), (w, (1, 7), 1), (192, (7, 1), 1)),
            chain(768, (w, 1, 1), (w, (7, 1), 1), (w, (1, 7), 1), (w, (7, 1), 1), (192, (1, 7), 1)),
            pooled(768, 192),
        )

    def split() -> nn.Module:
        return Branches(unit(384, 384, (1, 3)), unit(384, 384, (3, 1)))

    def block_e(c: int) -> nn.Module:
        return Branches(
            unit(c, 320, 1),
            nn.Sequential(unit(c, 384, 1), split()),
            nn.Sequential(unit(c, 448, 1), unit(448, 384, 3), split()),
            pooled(c, 192),
        )

    layers = [unit(3, 32, 3, 2), unit(32, 32, 3, same=False), unit(32, 64, 3), nn.MaxPool2d(3, 2)]
    layers += [unit(64, 80, 1), unit(80, 192, 3, same=False), nn.MaxPool2d(3, 2)]
    layers += [block_a(192, 32), block_a(256, 64), block_a(288, 64)]
    layers.append(Branches(unit(288, 384, 3, 2), chain(288, (64, 1, 1), (96, 3, 1), (96, 3, 2)), nn.MaxPool2d(3, 2)))
    layers += [block_c(128), block_c(160), block_c(160), block_c(192)]
    layers.append(
        Branches(
            chain(768, (192, 1, 1), (320, 3, 2)),
            chain(768, (192, 1, 1), (192, (1, 7), 1), (192, (7, 1), 1), (192, 3, 2)),
            nn.MaxPool2d(3, 2),
        )
    )
    layers += [block_e(1280), block_e(2048)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(2048, CLASSES)]
    return nn.Sequential(*layers)


@torch.no_grad()
def initialise(network: nn.Module, model: str) -> None:
    """Initialises with the distributions of models/random.cpp: He normal for convolutions, Glorot uniform for fully
    connected layers (VGG-16: normal with deviation 0.01), 0 for biases. PyTorch initialises batch norms to 1 and 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        elif isinstance(module, nn.Linear) and model == "vgg16":
            nn.init.normal_(module.weight, std=0.01)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)


def checked_network(model: str, image: int) -> nn.Module:
    """Returns a network in training mode for images of `image` x `image` pixels, initialised like ours. Errors:
    ValueError if the parameter count differs from the published count."""
    if model == "vgg16":
        network = vgg16(image)  # alone depends on the size
    elif model == "inception3":
        network = inception3()
    else:
        network = resnet((3, 4, 6, 3) if model == "resnet50" else (3, 4, 23, 3))
    count = sum(p.numel() for p in network.parameters())
    if image == DEFAULT_IMAGE[model] and count != PUBLISHED_PARAMETERS[model]:
        raise ValueError(f"{model} has {count} parameters, not {PUBLISHED_PARAMETERS[model]}")
    initialise(network, model)
    return network.train()


class Labels:
    """One batch of labels at a fixed place on the device. One thread.

    draw() uploads new labels before each step, outside captured graphs, as our trainers do. With the same labels in
    every step, a network would memorise them: its gradients would vanish, and its steps might be faster on a GPU."""

    def __init__(self, images: int, device: torch.device) -> None:
        self._generator = torch.Generator().manual_seed(1)
        self.tensor = torch.empty(images, dtype=torch.int64, device=device)
        self.draw()

    def draw(self) -> None:
        """Uploads the labels of the next step on the current stream."""
        pinned = self.tensor.is_cuda  # PyTorch uses pinned memory again only after the copies from it have ended
        new = torch.randint(0, CLASSES, self.tensor.shape, generator=self._generator, pin_memory=pinned)
        self.tensor.copy_(new, non_blocking=True)
