"""Every common layer and op of torch, given up entirely, trains bit for bit as without a plan.

Four steps each: the first is recorded, the second followed, the third comes with another batch
size, the fourth with the first size again. The block around a layer makes backward need the
layer's own output.
"""

from __future__ import annotations

import pytest
import torch
from engine_runs import assert_clean, assert_same, give_up, train
from layer_cases import ALL, Case, Model

BATCHES = (2, 2, 3, 2)


pytestmark = pytest.mark.usefixtures("no_warnings")


@pytest.mark.parametrize("case", ALL, ids=[case.name for case in ALL])
def test_layer_given_up_trains_the_same(case: Case) -> None:
    torch.manual_seed(3)
    model = Model(case.layer())
    plain, _ = train(model, case.inputs, BATCHES)
    planned, handle = train(model, case.inputs, BATCHES, give_up("block"))
    assert_same(plain, planned)
    assert handle is not None
    assert handle.replayed_ops > 0
    assert_clean()
