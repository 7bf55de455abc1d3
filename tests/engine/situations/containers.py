"""Containers that layers share and change: a graph dictionary, a growing feature list."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .parts import Batch, noise, one_tensor, tokens
from .situation import Setup, situation


class MessagePassing(nn.Module):
    """Reads node features from the graph dictionary and writes the new ones back into it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Linear(width, width)
        self.update = nn.Linear(2 * width, width)

    def forward(self, graph: dict[str, Tensor]) -> dict[str, Tensor]:
        nodes, (source, target) = graph["nodes"], graph["edges"]
        sent = self.message(nodes[source]).tanh()
        received = torch.zeros_like(nodes).index_add(0, target, sent)
        graph["nodes"] = self.update(torch.cat([nodes, received], dim=-1)).tanh()
        return graph


class GraphNet(nn.Module):
    """Three message-passing layers over one dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.layers = nn.ModuleList(MessagePassing(8) for _ in range(3))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        graph = {"nodes": self.embed(nodes), "edges": edges}
        for layer in self.layers:
            graph = layer(graph)
        return graph["nodes"]


def _graph_batch(index: int) -> Batch:
    return (noise(index, 9, 3), tokens(index, 9, 2, 20)), {}


@situation("QuantumLab-ZY/HamGNN#105", rerun="differs", may_refuse=True)
def dictionary_changed_by_layers() -> Setup:
    """When a layer reruns, the dictionary already holds what the last layer wrote."""
    return Setup(GraphNet(), _graph_batch)


class DenseLayer(nn.Module):
    """Normalizes and convolves all the features made so far."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        return self.conv(F.relu(self.norm(torch.cat(features, dim=1))))


class DenseNet(nn.Module):
    """Layers in a `ModuleDict` that share one growing list."""

    def __init__(self, growth: int = 4, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, growth, 3, padding=1)
        self.layers = nn.ModuleDict(
            {f"dense{i}": DenseLayer(growth * (i + 1), growth) for i in range(depth)}
        )

    def forward(self, image: Tensor) -> Tensor:
        features = [self.stem(image)]
        for layer in self.layers.values():
            features.append(layer(features))
        return torch.cat(features, dim=1).mean(dim=(2, 3))


@situation("pytorch/vision#2221", rerun="raises")
def growing_list_of_features() -> Setup:
    """The list an early layer was called with has grown by the time that layer reruns; hiding
    it in another list cuts the gradient instead.
    """
    return Setup(DenseNet(), one_tensor(3, 3, 8, 8))
