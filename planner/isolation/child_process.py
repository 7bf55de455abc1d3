"""`isolated`: runs a verb on a copy of everything, in a child process.

For steps that take from what cannot be put back, such as a generator function or an open file. The
child is a fork where that is possible: it has all that the parent has, closures and generators
included. Where an accelerator is in use, or there is no fork, the arguments are pickled.
"""

from __future__ import annotations

import functools
import multiprocessing
import pickle
import sys
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import torch

from planner.errors import PlannerError
from planner.isolation.own_files import own_open_files
from planner.training_step.throwaway import begin_throwaway

P = ParamSpec("P")
T = TypeVar("T")


class Outcome(NamedTuple):
    """What a child sends back: a result or an error, and the warnings on the way."""

    result: Any
    error: BaseException | None
    warned: tuple[tuple[str, type[Warning]], ...]


def isolated(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that does the same on a copy of everything, in a child process.

    The model, the step and all that they reach stay as they are here. In the copy, what cannot be
    put back is used up instead: each step takes the next item of a generator function or a data
    loader, and files are read and written as copies. Queues, connections and a data loader's
    workers are still refused, since the copy would share them.

    Args:
        function: `planner.plan`, `planner.profile`, `planner.verify` or `planner.best_batch`.

    Returns:
        A function with the same arguments and result. It raises what `function` raises, and
        `PlannerError` where the arguments cannot be sent to the child, or where the child dies.

    >>> plan = isolated(planner.plan)(model, budget_mb=300, step=step)  # doctest: +SKIP
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        work = functools.partial(function, *args, **kwargs)
        outcome = _forked(work) if may_fork() else _spawned(work)
        for text, kind in outcome.warned:
            warnings.warn(text, kind, stacklevel=2)
        if outcome.error is not None:
            raise outcome.error
        return cast("T", outcome.result)

    return run


def may_fork() -> bool:
    """Return whether a fork is a whole copy: the state of an accelerator's driver is not copied."""
    accelerator = torch.accelerator.current_accelerator()
    module: Any = None if accelerator is None else torch.get_device_module(accelerator)
    in_use = module is not None and getattr(module, "is_initialized", lambda: True)()
    return sys.platform == "linux" and not in_use


def _forked(work: Callable[[], object]) -> Outcome:
    return _outcome("fork", _work_in_fork, work)


def _spawned(work: Callable[[], object]) -> Outcome:
    try:  # not by multiprocessing, which would share the memory of tensors
        sent = pickle.dumps(work)
    except Exception as error:
        raise PlannerError(
            "the model and its step cannot be sent to a child process",
            f"{type(error).__name__}: {error}",
            "a fork cannot be made here, since an accelerator is in use or the system has none, and"
            " functions within functions, open files and generators cannot be pickled",
            "make the plan from a file: planner plan FILE.py:build --budget ... -o plan.json",
        ) from error
    return _outcome("spawn", _work_of_pickle, sent)


def _outcome(method: str, target: Callable[[Connection, Any], None], given: object) -> Outcome:
    """Run the target in a child, and wait for what it sends back."""
    context: Any = multiprocessing.get_context(method)
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=target, args=(sending, given))
    with warnings.catch_warnings():  # Python 3.12 and later warn of a fork beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    sending.close()
    try:
        received: bytes = receiving.recv_bytes()
    except EOFError:
        child.join()
        raise _died(child.exitcode) from None
    finally:
        receiving.close()
        child.kill()
        child.join()
    outcome: Outcome = pickle.loads(received)
    return outcome


def _died(code: int | None) -> PlannerError:
    return PlannerError(
        "the child process ended without a result",
        f"exit code {code}",
        "the system killed it, most often since memory ran out: it holds a copy of all that it"
        " writes",
        "plan here, without planner.isolated; or make the plan from a file: planner plan"
        " FILE.py:build --budget ... -o plan.json",
    )


def _work_in_fork(sending: Connection, work: Callable[[], object]) -> None:
    begin_throwaway()
    own_open_files()
    torch.set_num_threads(1)  # those of OpenMP are gone in a fork
    _send(sending, work)


def _work_of_pickle(sending: Connection, sent: bytes) -> None:
    begin_throwaway()

    def work() -> Any:
        return pickle.loads(sent)()

    _send(sending, work)


def _send(sending: Connection, work: Callable[[], object]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result, error = None, None
        try:
            result = work()
        except Exception as raised:
            error = raised
    warned = tuple((str(w.message), w.category) for w in caught)
    try:
        sent = pickle.dumps(Outcome(result, error, warned))
    except Exception as unsent:
        what = f"{type(error or result).__name__}: {error or result}"
        refused = PlannerError(
            "what the child process has made cannot be sent back",
            what,
            f"{type(unsent).__name__}: {unsent}",
            "run it in this process, without planner.isolated",
        )
        sent = pickle.dumps(Outcome(None, refused, ()))
    sending.send_bytes(sent)
