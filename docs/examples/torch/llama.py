"""A Llama in plain PyTorch, recorded for hvd_bench: RMSNorm, rotary embedding, SwiGLU, grouped-query attention.

python llama.py llama.replay    # the shape of SmolLM-135M: 30 layers, 576 wide, 134,515,008 parameters

Source of the shape: huggingface.co/HuggingFaceTB/SmolLM-135M, config.json.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

from hvdb.torch_profile import record


class RmsNorm(nn.Module):
    """Divides by the root of the mean square. Source: arXiv:1910.07467."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


def rotated(x: Tensor) -> Tensor:
    """Turns pairs of numbers by angles that grow with time. x: batch, heads, time, depth. Source: arXiv:2104.09864."""
    half = x.shape[-1] // 2
    speeds = 10000.0 ** (-torch.arange(half) / half)
    angles = torch.outer(torch.arange(x.shape[-2]), speeds)  # time, half
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), dim=-1)


class Attention(nn.Module):
    """Causal attention. Several heads of queries share one of keys and values. Source: arXiv:2305.13245."""

    def __init__(self, width: int, heads: int, shared: int) -> None:
        super().__init__()
        self.depth = width // heads
        self.q, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, shared * self.depth, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, self.depth)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (rotated(k), v))
        seen = functional.scaled_dot_product_attention(rotated(q), k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention and SwiGLU (arXiv:2002.05202), each after a normalisation and beside a residual sum."""

    def __init__(self, width: int, heads: int, shared: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.attention = Attention(width, heads, shared)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Scores of the next token. The embedding of the tokens is the last layer's weight, too."""

    def __init__(self, layers: int = 30, width: int = 576, heads: int = 9, tokens: int = 49152) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        hidden = width * 8 // 3  # SwiGLU has three matrices where other perceptrons have two of 4 * width
        self.blocks = nn.Sequential(*(Block(width, heads, heads // 3, hidden) for _ in range(layers)))
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(tokens))))


def next_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Returns the mean loss over all tokens but the first of each sequence."""
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    """Makes the model and records it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--layers", type=int, default=30, metavar="N")
    parser.add_argument("--width", type=int, default=576, metavar="N", help="a multiple of 192")
    parser.add_argument("--sequences", type=int, default=2, metavar="N")
    parser.add_argument("--length", type=int, default=64, metavar="TOKENS")
    parser.add_argument("--steps", type=int, default=20, metavar="N")
    parser.add_argument("--optimizer", choices=("AdamW", "SGD"), default="AdamW")
    arguments = parser.parse_args()
    model = Llama(arguments.layers, arguments.width, heads=arguments.width // 64)
    optimizer = getattr(torch.optim, arguments.optimizer)(model.parameters(), lr=1e-4, fused=True)
    batch = torch.randint(49152, (arguments.sequences, arguments.length + 1))
    made = {"unit": "sequences", "units": arguments.sequences, "optimizer": optimizer, "steps": arguments.steps}
    print(record(model, batch, next_token_loss, arguments.file, **made))


if __name__ == "__main__":
    main()
