"""The stream on which ops of an accelerator are queued.

A replay runs on the stream of the node of autograd that asks first. So what a segment computes on
another stream than the one on which it was opened must stay: nobody would wait for its replay.
"""

from __future__ import annotations

from typing import Any

import torch


def stream_now() -> torch.Stream | None:
    """Return the current stream; None where no accelerator is in use."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return None
    module: Any = torch.get_device_module(accelerator)
    # Asking would create a context on a device that nobody uses; MPS has one stream, and no call.
    if hasattr(module, "is_initialized") and module.is_initialized():
        return torch.accelerator.current_stream()
    return None


def same_device_other_stream(opened: torch.Stream | None) -> bool:
    """Whether ops go to another stream of the device on which a segment was opened."""
    now = stream_now() if opened is not None else None
    return (
        now is not None
        and opened is not None
        and now.device_index == opened.device_index
        and now.stream_id != opened.stream_id
    )
