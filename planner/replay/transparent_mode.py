"""The base of our dispatch modes: code under them runs as it does without them."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override


class TransparentMode(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """A dispatch mode under which compiled code runs compiled, and which higher-order ops reach."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]

    @classmethod
    @override
    def is_infra_mode(cls) -> bool:
        return True

    @classmethod
    @override
    def _should_skip_dynamo(cls) -> bool:
        # The compiler takes a handler's frames for no code of the user's, so there is nothing to
        # keep from it; to do so would import the compiler in every process that plans.
        return False
