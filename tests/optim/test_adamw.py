from __future__ import annotations

import torch
from torch import nn

from fp4lab.optim import build_optimizer


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.norm = nn.LayerNorm(3)
        self.frozen = nn.Parameter(torch.ones(2, 2), requires_grad=False)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


def test_only_matrices_decay_and_every_trained_parameter_is_there_once() -> None:
    model = Tied()
    optimizer = build_optimizer(model, learning_rate=0.1, weight_decay=0.5)
    decayed, kept = optimizer.param_groups
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.5, 0.0)
    assert [id(p) for p in decayed["params"]] == [id(model.embedding.weight)]
    assert [id(p) for p in kept["params"]] == [id(model.norm.weight), id(model.norm.bias)]


def test_one_update_is_the_formula_of_the_paper() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    optimizer = build_optimizer(model, learning_rate=0.01, weight_decay=0.1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        assert p.grad is not None
        # After one update the bias-corrected moments are g and g^2.
        decay = 0.1 if p.ndim == 2 else 0.0
        expected = before[name] * (1 - 0.01 * decay) - 0.01 * p.grad / (p.grad.abs() + 1e-8)
        torch.testing.assert_close(p.detach(), expected, rtol=1e-12, atol=0)


def test_a_model_without_matrices_has_one_group() -> None:
    assert len(build_optimizer(nn.LayerNorm(4), learning_rate=0.1).param_groups) == 1
