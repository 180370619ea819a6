"""A GPT in plain PyTorch, recorded for hvd_bench: trained as a whole, or only in adapters (LoRA).

python gpt.py gpt2.replay                  # 12 layers, 768 wide, as GPT-2: 124 million parameters
python gpt.py gpt2-lora.replay --lora 8    # the same, of which only adapters of rank 8 learn
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

from hvdb.torch_profile import record


class Block(nn.Module):
    """Causal attention and a perceptron, each after a normalisation and beside a residual sum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        split = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))  # batch, time, 3, heads, depth
        q, k, v = split.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Scores of the next token. The embedding of the tokens is the last layer's weight, too."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, tokens: int = 50257) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(1024, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


class Adapted(nn.Module):
    """A frozen layer beside which two thin ones learn. Source: arXiv:2106.09685."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.a = nn.Linear(layer.in_features, rank, bias=False)
        self.b = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.b(self.a(x))


def with_adapters(model: Gpt, rank: int) -> Gpt:
    """Freezes `model` and gives every layer of queries, keys and values an adapter. Returns `model`."""
    model.requires_grad_(False)
    for block in model.blocks:
        block.qkv = Adapted(block.qkv, rank)
    return model


def next_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Returns the mean loss over all tokens but the first of each sequence."""
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    """Makes the model and records it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--lora", type=int, metavar="RANK", help="train adapters of this rank only")
    parser.add_argument("--layers", type=int, default=12, metavar="N")
    parser.add_argument("--width", type=int, default=768, metavar="N", help="a multiple of 64")
    parser.add_argument("--sequences", type=int, default=2, metavar="N")
    parser.add_argument("--length", type=int, default=64, metavar="TOKENS")
    parser.add_argument("--steps", type=int, default=20, metavar="N")
    parser.add_argument("--optimizer", choices=("AdamW", "SGD"), default="AdamW")
    arguments = parser.parse_args()
    model = Gpt(arguments.layers, arguments.width, heads=arguments.width // 64)
    if arguments.lora:
        with_adapters(model, arguments.lora)
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = getattr(torch.optim, arguments.optimizer)(learning, lr=1e-4, fused=True)
    batch = torch.randint(50257, (arguments.sequences, arguments.length + 1))
    made = {"unit": "sequences", "units": arguments.sequences, "optimizer": optimizer, "steps": arguments.steps}
    print(record(model, batch, next_token_loss, arguments.file, **made))


if __name__ == "__main__":
    main()
