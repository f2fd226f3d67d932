"""Nested values: each leaf with the expression that reaches it."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from runner.subject.gradients import Gradients
from runner.timing.nested import leaves, mapped, named_tensors, tensors


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Record:
    keys: Any
    count: int


class Cache:
    """An object that is no dataclass, as Hugging Face's caches are."""

    def __init__(self, *keys: Any) -> None:
        self.keys, self.seen = [*keys], len(keys)


X, Y = torch.zeros(2), torch.ones(3)


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (X, [""]),
        ((X, Y), ["[0]", "[1]"]),
        ({"past": ((X, Y),)}, ['["past"][0][0]', '["past"][0][1]']),
        (Pair(X, [Y, None]), [".left", ".right[0]", ".right[1]"]),
        (Record({"a": 1}, 2), ['.keys["a"]', ".count"]),
        (Cache(X, Cache()), [".keys[0]", ".keys[1].seen", ".seen"]),
        (SimpleNamespace(x=X), [".x"]),
        ({3: "word"}, ["[3]"]),
        (torch.nn.Linear(2, 3), [".weight", ".bias"]),
        ((), []),
    ],
)
def test_each_leaf_has_its_path(value, paths):
    assert [path for path, _ in leaves(value)] == paths


def test_an_object_that_holds_itself_or_is_of_a_library_is_one_leaf():
    cache = Cache(X)
    cache.keys.append({"parent": cache})
    for value in (cache, torch.Generator(), threading.Thread(), len):
        assert [*leaves(value)] == [("", value)]


def test_a_tensor_occurs_once_under_its_first_path():
    assert [*named_tensors({"a": X, "b": [X, Y]})] == ['["a"]', '["b"][1]']


@pytest.mark.parametrize("value", [[X], (X,), {"a": X}, OrderedDict(a=X), Pair(X, 1), Record(X, 1), Cache(X)])
def test_mapped_keeps_the_types_and_changes_nothing_given(value):
    changed = mapped(lambda tensor: tensor + 1, value)
    assert type(changed) is type(value)
    assert [float(tensor.sum()) for tensor in tensors(changed)] == [2.0]
    assert float(X.sum()) == 0


def test_a_tensor_that_occurs_twice_is_changed_once():
    first, second = mapped(Tensor.clone, (X, X))
    assert first is second is not X


def test_modules_stay_unless_another_one_is_returned():
    module, other = torch.nn.Linear(1, 1), torch.nn.Linear(2, 2)
    assert mapped(Tensor.clone, [module]) == [module]
    assert mapped(Tensor.clone, [module, module], lambda _: other) == [other, other]


@pytest.mark.parametrize("first", [True, False])
def test_an_optimizer_is_mapped_with_the_module_whose_parameters_it_steps(first):
    module = torch.nn.Linear(2, 1)
    module.weight.grad = torch.ones_like(module.weight)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0, momentum=0.5)
    optimizer.step()
    before = module.weight.tolist()
    both = [module, optimizer] if first else [optimizer, module]
    made = mapped(lambda x: x.detach().clone(), both, copy.deepcopy)
    other, stepped = made if first else made[::-1]
    assert stepped.param_groups[0]["params"][0] is other.weight
    assert [*stepped.state] == [other.weight]
    stepped.step()
    assert other.weight.tolist() != module.weight.tolist() == before
    assert optimizer.state[module.weight]["momentum_buffer"].tolist() == [[1, 1]]
    assert '.state[0]["momentum_buffer"]' in named_tensors(optimizer)


def test_what_occurs_twice_is_one_object_afterwards():
    cache = Cache(X)
    first, second = mapped(Tensor.clone, (cache, [cache]))
    assert first is second[0] is not cache


class NoCopy:
    def __init__(self):
        self.x = X

    def __copy__(self):
        raise TypeError("no copies")


def test_an_object_whose_class_refuses_copies_is_mapped():
    value = NoCopy()
    assert torch.equal(mapped(lambda tensor: tensor + 1, value).x, X + 1)
    assert value.x is X


def test_an_object_with_too_many_ways_to_a_leaf_is_a_leaf():
    top = long = SimpleNamespace(x=X)
    for _ in range(40):
        top = SimpleNamespace(left=top, right=top)
    for _ in range(2000):
        long = SimpleNamespace(next=long)
    assert [*leaves((top, long))] == [("[0]", top), ("[1]", long)]


def test_copies_are_freed_as_soon_as_nobody_has_them():
    def changed(tensor):
        made.append(weakref.ref(copied := tensor.clone()))
        return copied

    made = []
    value = (torch.ones(3).requires_grad_(), {"b": torch.ones(2)}, torch.nn.Linear(2, 2))
    value[0].grad = torch.ones(3)
    gc.disable()  # a cycle would keep several copies of the inputs of a large case
    try:
        mapped(changed, value, copy.deepcopy)
        assert len(made) == 3
        assert [one() for one in made] == [None] * 3
    finally:
        gc.enable()


def test_a_call_with_gradients_leaves_no_graph_behind():
    def doubled(x):
        made.append(weakref.ref(y := x * 2))
        return {"y": y}

    made = []
    call = Gradients(doubled, [torch.ones(3)])
    gc.disable()  # a graph that is left was made on another stream than the one that a CUDA graph is captured on
    try:
        call()
        call()
        assert [one() for one in made] == [None, None]
    finally:
        gc.enable()
