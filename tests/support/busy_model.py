"""A model whose forward changes all that a forward can change."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn


class Plain:
    def __init__(self):
        self.calls, self.tensor = 0, torch.zeros(2)


class Busy(nn.Module):
    """Changes, in forward, all that a forward can change."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.hidden = [nn.Linear(3, 3)]
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("late", None)
        self.register_buffer("grows", torch.zeros(2))
        self.register_buffer("spread", torch.zeros(1).expand(4), persistent=False)
        self.register_buffer("replaced", torch.zeros(3))
        self.register_buffer("cast", torch.zeros(3))
        self.register_buffer("carried", torch.zeros(3))
        self.load, self.count, self.flag, self.name = None, 0, False, "a"
        self.cache, self.order = {"k": torch.zeros(2)}, OrderedDict(a=1)
        self.log, self.recent, self.ids = [torch.zeros(2)], deque([1], maxlen=2), {1}
        self.tally, self.many = Counter("ab"), defaultdict(list)
        self.nested = {"deep": [{"er": [1]}]}
        self.plain, self.space = Plain(), SimpleNamespace(n=0)
        self.array = np.zeros(3)
        self.generator = torch.Generator().manual_seed(1)
        self.dice, self.numpy = random.Random(1), np.random.default_rng(1)

    def forward(self, x):
        self.seen += x.sum(0).detach()
        self.late = torch.ones(5)
        self.grows.resize_(100).fill_(1)
        self.spread = self.spread + 1
        self.replaced = self.replaced + 1
        self.cast = self.cast.half()
        self.carried.add_(self.layer(x).sum(0))
        self.load, self.count, self.flag, self.name = x.sum(), self.count + 1, True, "b"
        self.cache["k"].add_(1), self.cache.update(new=x), self.order.clear()
        self.log[0].add_(1), self.log.append(x), self.recent.extend([2, 3]), self.ids.add(2)
        self.tally.update("abc"), self.many["x"].append(1)
        self.nested["deep"][0]["er"].append(2)
        self.plain.calls += 1
        self.plain.tensor.add_(1)
        self.plain.extra, self.space.n = 1, 1
        self.array += 1
        torch.rand(1, generator=self.generator), self.dice.random(), self.numpy.random()
        self.new = 1
        self.added = nn.Linear(1, 1)
        self.layer.register_forward_hook(lambda *_: None)
        self.layer.weight.register_hook(lambda grad: None)
        self.layer.weight.mark = 1
        self.hidden[0].touched = True
        self.hidden[0].eval()
        self.eval()
        return self.layer(x) + self.carried


def everything_in(model: Busy) -> dict[str, object]:
    shown = {name: repr(value) for name, value in sorted(vars(model).items())}
    shown |= {name: (id(t), repr(t), t.stride()) for name, t in model.named_buffers()}
    shown["hidden"] = repr(sorted(vars(model.hidden[0])))
    shown["modes"] = [module.training for module in (*model.modules(), model.hidden[0])]
    shown["layer hooks"] = len(model.layer._forward_hooks)
    shown["weight hooks"] = len(model.layer.weight._backward_hooks or ())
    shown["weight"] = repr(vars(model.layer.weight))
    shown["plain"] = repr(vars(model.plain))
    shown["generator"] = model.generator.get_state().sum().item()
    shown["dice"], shown["numpy"] = model.dice.getstate(), repr(model.numpy.bit_generator.state)
    shown["carried"] = (model.carried.requires_grad, model.carried.is_leaf)
    return shown
