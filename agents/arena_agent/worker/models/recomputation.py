"""A part of a model that runs again in the backward pass, so that only its arguments are kept in between.

As ``torch.utils.checkpoint(use_reentrant=False)`` does, whose other abilities nobody needs here: calling it loads
``torch._dynamo``, which takes as long as all of torch besides, in every process that trains.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def recomputed(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function now and again in the backward pass, keeping only its arguments in between.

    It must do the same both times; it may not be nested in another such function.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    part = _Part(function, arguments)
    with saved_tensors_hooks(part.note, part.taken):
        return function(*arguments)


class _EnoughError(Exception):
    """All that the backward pass asks for is there again; the rest of the function need not run."""


class _Kept:
    """The place of one tensor that autograd saves; empty but while the backward pass is in this part."""

    __slots__ = ("__weakref__", "value")

    def __init__(self) -> None:
        self.value: Tensor | None = None


class _Part:
    """One run of a function. Autograd's graph owns it through the places, and drops both after use."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments
        # Weak, so that what is recomputed goes as soon as its place has: when the graph has no more use for it.
        self._places: list[weakref.ref[_Kept]] = []

    def note(self, _tensor: Tensor) -> _Kept:
        """Give a tensor that autograd would save a place instead."""
        place = _Kept()
        self._places.append(weakref.ref(place))
        return place

    def taken(self, place: _Kept) -> Tensor:
        """Return the tensor of a place, which is empty thereafter."""
        if place.value is None:
            self._fill()
        value, place.value = place.value, None
        if value is None:
            raise RuntimeError("a recomputed function saved fewer tensors than in its first run")
        return value

    def _fill(self) -> None:
        places = iter(self._places)
        left = len(self._places)

        def put(tensor: Tensor) -> Tensor:
            nonlocal left
            # Without the graph of this second run, which nobody goes back through.
            tensor = tensor.detach()
            place = next(places)()
            if place is not None:
                place.value = tensor
            left -= 1
            if left == 0:
                raise _EnoughError
            return tensor

        with (
            contextlib.suppress(_EnoughError),
            torch.enable_grad(),
            saved_tensors_hooks(put, lambda tensor: tensor),
        ):
            self._function(*(_detached(argument) for argument in self._arguments))


def _detached(argument: Any) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    return argument.detach().requires_grad_(argument.requires_grad)
