"""PyTorch programs made for the tests, saved as ``.pt2``."""

from __future__ import annotations

import warnings

import torch
from torch import nn


class Convolutions(nn.Module):
    """Residual convolutions; two inputs, two outputs, one of them made early."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.norm, self.last = nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, image, bias):
        x = torch.relu(self.norm(self.first(image)))
        early = x.mean((2, 3))
        x = x + self.second(x)
        return {"logits": self.last(x.mean((2, 3))) + bias, "early": early}


class Attention(nn.Module):
    """Token ids, attention, and a weight that is used twice."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(32, 16), nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + nn.functional.scaled_dot_product_attention(q, k, v)
        return x @ self.embed.weight.T


class Chosen(nn.Module):
    """A branch inside, a weight as an output, and an input that is handed through."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.arange(4.0))

    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda a: a.sin() * 2, lambda a: a.cos(), (x,))
        return y * self.scale, self.scale + 0, x


def saved(name, path):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own deprecations
        n = torch.export.Dim("n", min=1, max=64)
        match name:
            case "convolutions":
                module, inputs = Convolutions(), (torch.zeros(2, 3, 8, 8), torch.zeros(5))
                shapes = ({0: n}, None)
            case "attention":
                module, inputs, shapes = Attention(), (torch.zeros(2, 6, dtype=torch.int64),), ({0: n},)
            case _:
                module, inputs, shapes = Chosen(), (torch.ones(2, 4),), (None,)
        program = torch.export.export(module.eval(), inputs, dynamic_shapes=shapes)
        torch.export.save(program, path)
    return path
