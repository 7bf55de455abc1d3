"""The dynamic program for heterogeneous chains, and a step that computes the same thing.

Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova 2019, "Optimal checkpointing for heterogeneous
chains: how to train deep neural networks with limited memory" (arXiv 1911.13214), section 4: the
optimal *persistent* schedule, in which a checkpoint stays until it is used.

Stage l = 1..L computes `a_l` from `a_l-1` in `u_f`, and its backward `d_l-1` from `d_l`, `a_l-1`
and `abar_l` in `u_b`; `abar_l` is `a_l` and what else the stage saves. A forward either keeps
`abar_l` (F_all) or drops it, with its input kept (F_ck) or not (F_0). The least time for the
forward and backward of stages s..t in m bytes, not counting `a_s-1`, which is there throughout, is

    C(s, s, m) = u_f(s) + u_b(s)
    C(s, t, m) = min( u_f(s) + C(s+1, t, m - abar_s) + u_b(s),                         first kept
                      min over k of u_f(s..k-1) + C(k, t, m - a_k-1) + C(s, k-1, m) )  checkpoint

where the first needs `m_all` and the second `m_none` bytes for its own ops.

How the memory models are matched. Both count bytes during each op, with all of its inputs and
outputs.

- A stage is one op here, which allocates `abar_l` and its temporary `o_f` whatever becomes of
  them; so the forgetful forward of the paper has an overhead of `o_f + abar_l - a_l`.
- A backward holds `d_l` and `d_l-1` together, so the paper's `o_b` has `d_l-1` in it. Gradients of
  activations are as large as those.
- The last stage stands for the loss: nothing is given in (`d_L` is empty). `a_0` is the step's
  input; it is live all the time, in the budget of both, and has no gradient.
- A stage's result is saved by the next stage and not by itself, as where it ends in a matmul or
  an addition: `abar_l` loses `a_l` once stage l + 1 has run backward. The paper counts `a_l` to the
  end, so this oracle asks for more than the paper's.
- Times are in seconds, beside which the costs of the engine in a small step vanish: whole seconds
  of an overhead are the kernels' alone.

Where a stage's last op saves its own result (tanh, softmax) the paper's schedules may drop a
checkpoint between its two uses and make it again. The engine holds one copy for both, so such
chains are not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from graphs import StepBuilder, plain_peak

from planner.documents.profile import Storage
from planner.graph import Graph

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: sizes in bytes, times in seconds.

    Attributes:
        out: `a_l`.
        more: what else backward needs, `abar_l` less `a_l`.
        forward_s: `u_f`.
        backward_s: `u_b`.
        forward_temp: `o_f`.
        backward_temp: `o_b`.
    """

    out: int
    more: int
    forward_s: int
    backward_s: int
    forward_temp: int = 0
    backward_temp: int = 0


class Oracle:
    """Least times of one chain.

    Args:
        stages: the stages, the first of which reads the input.
        input_bytes: `a_0`.
    """

    def __init__(self, stages: Sequence[Stage], input_bytes: int) -> None:
        self.stages = stages
        self.input_bytes = input_bytes
        self.least = cache(self._least)

    def extra_s(self, budget_bytes: int) -> int | None:
        """Return the least time over one forward and backward, or None where nothing fits."""
        found = self.least(0, len(self.stages) - 1, budget_bytes - self.input_bytes)
        plain = sum(s.forward_s + s.backward_s for s in self.stages)
        return None if found is None else found - plain

    def floor(self, enough_bytes: int) -> int:
        """Return the smallest budget in which something fits, given one that is enough."""
        low, high = 0, enough_bytes
        while low < high:
            middle = (low + high) // 2
            if self.extra_s(middle) is None:
                low = middle + 1
            else:
                high = middle
        return low

    def _least(self, s: int, t: int, room: int) -> int | None:
        first, found = self.stages[s], []
        if room >= self._for_all(s, t):
            if s == t:
                return first.forward_s + first.backward_s
            rest = self.least(s + 1, t, room - first.out - first.more)
            if rest is not None:
                found.append(first.forward_s + rest + first.backward_s)
        forward_s = 0
        for k in range(s + 1, t + 1):
            if room < self._for_none(k - 1, t, k - 1 == s):
                break
            forward_s += self.stages[k - 1].forward_s
            after = self.least(k, t, room - self.stages[k - 1].out)
            before = self.least(s, k - 1, room)
            if after is not None and before is not None:
                found.append(forward_s + after + before)
        return min(found, default=None)

    def _for_all(self, s: int, t: int) -> int:
        """`m_all`: bytes during the stage's own forward and backward."""
        stage = self.stages[s]
        forward = self._gradient(t) + stage.out + stage.more + stage.forward_temp
        gradients = self._gradient(s) + self._gradient(s - 1)
        return max(forward, gradients + stage.more + stage.backward_temp)

    def _for_none(self, j: int, t: int, first: bool) -> int:
        """`m_none`: bytes while stage j runs without being kept."""
        stage, before = self.stages[j], 0 if first else self.stages[j - 1].out
        return self._gradient(t) + before + stage.out + stage.more + stage.forward_temp

    def _gradient(self, stage: int) -> int:
        """Bytes of the gradient of a stage's result: none for the loss and the input."""
        return self.stages[stage].out if 0 <= stage < len(self.stages) - 1 else 0


def graph_of(stages: Sequence[Stage], input_bytes: int) -> Graph:
    """Return the same chain as a training step."""
    step = StepBuilder()
    x = step.outside(input_bytes, "input")
    with step.unit("", "Chain"):
        for number, stage in enumerate(stages):
            with step.unit(f"{number}", "Stage"):
                x = step.op(
                    "aten.addmm.default",
                    (x,),
                    (stage.out, stage.more, stage.forward_temp),
                    saves=(x,),
                    saves_out=(1,),
                    time_ns=stage.forward_s * SECOND_NS,
                )[0]
    profile, at = step.profile(), step.backward_at()
    temps = [
        Storage(stage.backward_temp, "activation", at[i], at[i], at[i])
        for i, stage in enumerate(stages)
    ]
    storages = (*profile.storages, *temps)
    peak = plain_peak(storages, len(profile.ops))
    return Graph.of(replace(profile, storages=storages, plain_peak_bytes=peak))
