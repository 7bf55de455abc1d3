"""The memory meter: known peaks, an independent count, and the ways a storage comes and goes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint_sequential

from planner.memory.meter import CpuMeter, StorageMeter, meter_for, step_tensors

MIB = 2**20
# Peaks of one step of the 1024-wide stack at batch 4096, by number of checkpointed segments.
KNOWN_PEAKS_MIB = {0: 372.1, 2: 288.1, 4: 240.1, 8: 264.1, 16: 372.1}


def stack(width: int, blocks: int = 16) -> nn.Sequential:
    layers = [layer for _ in range(blocks) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers)


def one_step(model: nn.Sequential, x: torch.Tensor, segments: int = 0) -> None:
    # Without the random state, which checkpoint stores in tensors that no op ever sees.
    options = {"use_reentrant": False, "preserve_rng_state": False}
    out = checkpoint_sequential(model, segments, x, **options) if segments else model(x)
    out.sum().backward()


def step_peak(width: int, segments: int, device: str = "cpu") -> int:
    with torch.device(device):
        model, x = stack(width), torch.randn(4 * width, width, requires_grad=True)
    with meter_for(device, step_tensors(model, inputs=[x])) as meter:
        one_step(model, x, segments)
    return meter.peak_bytes


def expected_plain_peak(width: int) -> int:
    """Parameters, x, 16 ReLU outputs, two gradients of activations, one Linear's, two scalars."""
    linear, activation = width * width + width, 4 * width * width
    return 4 * (16 * linear + (1 + 16 + 2) * activation + linear + 2)


def profiler_peak(step: Callable[[], None]) -> int:
    """The highest running sum of the allocations and frees that torch's own profiler reports."""
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profiled:
        step()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    running = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        running += event.nbytes()
        peak = max(peak, running)
    return peak


@pytest.mark.parametrize("segments", KNOWN_PEAKS_MIB)
def test_known_peaks_on_the_meta_device(segments: int):
    assert round(step_peak(1024, segments, "meta") / MIB, 1) == KNOWN_PEAKS_MIB[segments]


@pytest.mark.parametrize("segments", KNOWN_PEAKS_MIB)
def test_the_cpu_counts_what_the_meta_device_counts(segments: int):
    assert step_peak(128, segments) == step_peak(128, segments, "meta")


def test_plain_peak_to_the_byte():
    assert step_peak(256, 0) == expected_plain_peak(256)


@pytest.mark.nightly
def test_plain_peak_at_full_size():
    assert step_peak(1024, 0) == expected_plain_peak(1024)


@pytest.mark.parametrize("segments", [0, 4])
def test_equal_to_the_profilers_memory_events(segments: int):
    model, x = stack(128, blocks=6), torch.randn(512, 128, requires_grad=True)
    with meter_for("cpu", step_tensors(model, inputs=[x])) as meter:
        one_step(model, x, segments)
    grown = meter.peak_bytes - meter.baseline_bytes
    model.zero_grad(), setattr(x, "grad", None)
    assert profiler_peak(lambda: one_step(model, x, segments)) == grown


def test_equal_to_the_profiler_with_an_optimizer():
    model, x = stack(64, blocks=3), torch.randn(8, 64)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        one_step(model, x)
        optimizer.step()

    step()
    optimizer.zero_grad()
    with CpuMeter(step_tensors(model, optimizer, [x])) as meter:
        step()
    optimizer.zero_grad()
    assert profiler_peak(step) == meter.peak_bytes - meter.baseline_bytes


def test_step_tensors_lists_all_that_is_alive_before_a_step():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    x = torch.randn(2, 4)
    optimizer = torch.optim.Adam(model.parameters())
    model(x).sum().backward()
    optimizer.step()
    parameter_bytes = 4 * (16 + 4 + 4 + 4)
    others_bytes = 4 * (4 + 4) + 8 + 4 * 8 + 4 * 4  # buffers, x, Adam's four step counts
    found = CpuMeter(step_tensors(model, optimizer, [x]))
    assert found.baseline_bytes == parameter_bytes * 4 + others_bytes


def test_views_count_once_and_die_with_the_last():
    with CpuMeter() as meter:
        whole = torch.zeros(100)
        part = whole[10:20].view(2, 5)
        assert meter.live_bytes == 400
        del whole
        assert meter.live_bytes == 400
        del part
        assert meter.live_bytes == 0
    assert meter.peak_bytes == 400


def test_arguments_not_seen_before_are_counted_from_then_on():
    old = torch.zeros(100)
    with CpuMeter() as meter:
        new = old + 1
        assert meter.live_bytes == 800
    assert meter.baseline_bytes == 0 and new.numel() == 100


def test_tensors_that_only_autograd_holds_are_alive():
    x = torch.ones(100, requires_grad=True)
    with CpuMeter([x]) as meter:
        y = x.exp().exp().sum()
        assert meter.live_bytes == 3 * 400 + 4
        y.backward()
        del y
        assert meter.live_bytes == 2 * 400


def test_resizes_in_ops_and_of_storages():
    with CpuMeter() as meter:
        x = torch.zeros(10)
        x.resize_(100)
        assert meter.live_bytes == 400
        x.untyped_storage().resize_(0)
        assert meter.live_bytes == 0
        x.untyped_storage().resize_(800)
        assert (meter.live_bytes, meter.peak_bytes) == (800, 800)
        torch.add(torch.ones(50), 1, out=torch.empty(0))
        assert meter.live_bytes == 800
        x.set_(torch.zeros(5))
        assert meter.live_bytes == 20
    assert torch.UntypedStorage.resize_.__name__ == "resize_"


def test_the_peak_can_be_begun_again():
    with CpuMeter() as meter:
        torch.zeros(100)
        kept = torch.zeros(10)
        meter.reset_peak()
        assert meter.peak_bytes == meter.live_bytes == kept.nbytes


def test_entering_begins_at_what_is_alive_then():
    meter = CpuMeter([torch.zeros(1000)])
    with meter:
        torch.zeros(10)
    assert (meter.baseline_bytes, meter.peak_bytes) == (0, 40)


def test_an_error_inside_leaves_no_mode_behind():
    with pytest.raises(ZeroDivisionError), CpuMeter():
        1 / 0  # noqa: B018
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


class Passing(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("outside", [True, False])
def test_among_other_modes(outside: bool):
    model, x = stack(16, blocks=2), torch.randn(4, 16)
    meter, other = CpuMeter(step_tensors(model, inputs=[x])), Passing()
    first, second = (other, meter) if outside else (meter, other)
    with first, second:
        one_step(model, x)
    alone = stack(16, blocks=2)
    with CpuMeter(step_tensors(alone, inputs=[x])) as expected:
        one_step(alone, x)
    assert other.seen > 0
    assert meter.peak_bytes == expected.peak_bytes


def test_nested_meters_agree():
    with CpuMeter() as outer, CpuMeter() as inner:
        torch.zeros(10) + torch.zeros(10)
    assert outer.peak_bytes == inner.peak_bytes == 120


def test_in_another_thread_and_from_several():
    found: list[int] = []

    def work() -> None:
        found.append(step_peak(64, 0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [expected_plain_peak(64)]

    kept: list[torch.Tensor] = []
    with CpuMeter() as meter:

        def make() -> None:
            with meter.mode():
                for _ in range(50):
                    kept.append(torch.zeros(25) + 0)

        threads = [threading.Thread(target=make) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert meter.live_bytes == 4 * 50 * 100
        kept.clear()
        assert meter.live_bytes == 0


def test_sparse_gradients_and_tensors():
    model = nn.Embedding(50, 4, sparse=True)
    with CpuMeter(step_tensors(model)) as meter:
        model(torch.tensor([1, 3])).sum().backward()
        indices, values = 2 * 8, 2 * 4 * 4
        assert meter.live_bytes >= meter.baseline_bytes + indices + values
    assert CpuMeter([torch.eye(3).to_sparse()]).live_bytes == 3 * 4 + 2 * 3 * 8
    bounds, places = torch.arange(4), torch.arange(3)
    for make in (torch.sparse_csr_tensor, torch.sparse_csc_tensor):
        compressed = make(bounds, places, torch.ones(3), check_invariants=True)
        assert CpuMeter([compressed]).live_bytes == 4 * 8 + 3 * 8 + 3 * 4


def test_mkldnn_tensors_do_not_crash():
    if not torch.backends.mkldnn.is_available():
        pytest.skip("no mkldnn in this build")
    with CpuMeter() as meter:
        torch.ones(4, 4).to_mkldnn().to_dense()
    assert meter.peak_bytes >= 64


def test_wrapper_subclasses_count_as_their_parts():
    from torch.testing._internal.two_tensor import TwoTensor

    pair = TwoTensor(torch.zeros(10), torch.zeros(10))
    with CpuMeter([pair]) as meter:
        assert meter.live_bytes == 80
        doubled = pair + pair
        assert meter.live_bytes == 160
        del doubled
        assert meter.live_bytes == 80


def test_plain_subclasses_count_as_tensors():
    class Marked(torch.Tensor):
        pass

    with CpuMeter() as meter:
        marked = torch.zeros(10).as_subclass(Marked)
        more = marked + 1
        assert type(more) is Marked
        assert meter.live_bytes == 80


def test_fake_tensors_hold_no_memory():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with CpuMeter() as meter, FakeTensorMode():
        fake = torch.zeros(1000) + 1
        assert fake.shape == (1000,)
    assert meter.peak_bytes == 0


def test_function_transforms_do_not_crash():
    with CpuMeter() as meter:
        torch.func.vmap(torch.func.grad(lambda x: x.sin().sum()))(torch.zeros(5, 10))
    assert meter.peak_bytes >= 400


def test_compiled_code_runs_compiled():
    graphs = 0

    def backend(graph, example_inputs):
        nonlocal graphs
        graphs += 1
        return graph.forward

    compiled = torch.compile(lambda x: x.sin().cos(), backend=backend, fullgraph=True)
    with CpuMeter() as meter:
        result = compiled(torch.ones(100))
    assert graphs == 1
    assert meter.peak_bytes >= result.nbytes


def test_control_flow_operators_do_not_crash():
    x = torch.ones(3, requires_grad=True)
    with CpuMeter() as meter:
        torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).sum().backward()
    assert meter.peak_bytes >= x.nbytes
    assert torch.equal(x.grad, torch.ones(3).cos())


def test_other_devices_are_not_counted():
    with CpuMeter() as meter, StorageMeter("meta") as meta:
        torch.zeros(10, device="meta")
    assert (meter.peak_bytes, meta.peak_bytes) == (0, 40)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_reports_what_the_allocator_does():
    model, x = stack(256).cuda(), torch.randn(1024, 256, device="cuda", requires_grad=True)
    one_step(model, x)  # the first step also allocates cuBLAS workspaces
    model.zero_grad(), setattr(x, "grad", None)
    with meter_for("cuda") as meter:
        one_step(model, x)
    assert meter.peak_bytes == torch.cuda.max_memory_allocated()
    assert meter.peak_bytes - meter.baseline_bytes >= 16 * 1024 * 256 * 4
    assert meter.live_bytes > meter.baseline_bytes
