"""The same functions through the command line and through ``bench`` get the same verdicts."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from runner import bench
from runner.tasks import own_file

# Each function ends in what is expected of it: right or wrong.
FILE = '''
import torch

def inputs(rows=32, cols=96):
    return torch.randn(rows, cols), torch.rand(cols) + 0.5

def reference(x, w):
    """A normalization: its result, and statistics in a dict with a tuple, a number and a word."""
    mean, rstd = x.mean(-1, keepdim=True), (x.var(-1, keepdim=True, correction=0) + 1e-5).rsqrt()
    return {"y": (x - mean) * rstd * w, "stats": (mean, rstd), "count": x.shape[0], "kind": "layer", "none": None}

def _with(x, w, **changed):
    return {**reference(x, w), **changed}

def plain_right(x, w):
    return reference(x, w)

def native_right(x, w):
    y, mean, rstd = torch.native_layer_norm(x, [x.shape[-1]], w, None, 1e-5)
    return _with(x, w, y=y, stats=(mean, rstd))

def wide_right(x, w):
    y = torch.nn.functional.layer_norm(x.double(), [x.shape[-1]], w.double(), None, 1e-5)
    return _with(x, w, y=y.float())

def by_rows_right(x, w):
    rows = [reference(row[None], w) for row in x]
    return _with(x, w, y=torch.cat([row["y"] for row in rows]))

def other_order_right(x, w):
    order = torch.arange(x.shape[-1] - 1, -1, -1)
    y = reference(x[:, order], w[order])["y"][:, order]
    return _with(x, w, y=y)

def transposed_right(x, w):
    y = reference(x, w)["y"]
    return _with(x, w, y=y.t().contiguous().t())

def one_pass_right(x, w):
    mean = x.mean(-1, keepdim=True)
    rstd = ((x * x).mean(-1, keepdim=True) - mean * mean + 1e-5).rsqrt()
    return _with(x, w, y=(x - mean) * rstd * w)

def list_right(x, w):
    result = reference(x, w)
    return {**result, "stats": list(result["stats"])}

def changes_its_input_right(x, w):
    result = reference(x, w)
    x.add_(1)
    return result

def same_memory_right(x, w):
    out = _MEMORY.setdefault((x.shape, x.dtype), torch.empty_like(x))
    out.copy_(reference(x, w)["y"])
    return _with(x, w, y=out)

def other_key_order_right(x, w):
    return dict(reversed(reference(x, w).items()))

def permille_wrong(x, w):
    return _with(x, w, y=reference(x, w)["y"] * 1.001)

def percent_of_one_statistic_wrong(x, w):
    mean, rstd = reference(x, w)["stats"]
    return _with(x, w, stats=(mean, rstd * 1.01))

def without_weight_wrong(x, w):
    return reference(x, torch.ones_like(w))

def unbiased_wrong(x, w):
    rstd = (x.var(-1, keepdim=True) + 1e-5).rsqrt()
    return _with(x, w, y=(x - x.mean(-1, keepdim=True)) * rstd * w)

def other_epsilon_wrong(x, w):
    rstd = (x.var(-1, keepdim=True, correction=0) + 1e-3).rsqrt()
    return _with(x, w, y=(x - x.mean(-1, keepdim=True)) * rstd * w)

def narrow_wrong(x, w):
    return _with(x, w, y=reference(x.bfloat16(), w.bfloat16())["y"].float())

def half_sum_wrong(x, w):
    return _with(x, w, y=reference(x.half().float(), w)["y"])

def one_element_wrong(x, w):
    y = reference(x, w)["y"].clone()
    y[-1, -1] += 0.01
    return _with(x, w, y=y)

def last_row_wrong(x, w):
    y = reference(x, w)["y"].clone()
    y[-1] = 0
    return _with(x, w, y=y)

def shifted_wrong(x, w):
    return _with(x, w, y=reference(x, w)["y"].roll(1, 0))

def nan_wrong(x, w):
    y = reference(x, w)["y"].clone()
    y[0, 0] = float("nan")
    return _with(x, w, y=y)

def infinite_wrong(x, w):
    y = reference(x, w)["y"].clone()
    y[3, 7] = float("inf")
    return _with(x, w, y=y)

def zeros_wrong(x, w):
    return _with(x, w, y=torch.zeros_like(x))

def input_wrong(x, w):
    return _with(x, w, y=x)

def fewer_rows_wrong(x, w):
    return _with(x, w, y=reference(x, w)["y"][1:])

def flat_wrong(x, w):
    return _with(x, w, y=reference(x, w)["y"].flatten())

def half_type_wrong(x, w):
    return _with(x, w, y=reference(x, w)["y"].half())

def no_statistics_wrong(x, w):
    result = reference(x, w)
    del result["stats"]
    return result

def one_statistic_wrong(x, w):
    return _with(x, w, stats=reference(x, w)["stats"][:1])

def more_wrong(x, w):
    return _with(x, w, more=x.sum())

def number_wrong(x, w):
    return _with(x, w, count=x.shape[0] + 1)

def word_wrong(x, w):
    return _with(x, w, kind="group")

def tensor_for_none_wrong(x, w):
    return _with(x, w, none=x)

def none_for_tensor_wrong(x, w):
    return _with(x, w, y=None)

def nothing_wrong(x, w):
    return None

def swapped_wrong(x, w):
    mean, rstd = reference(x, w)["stats"]
    return _with(x, w, stats=(rstd, mean))

_MEMORY, _KNOWN = {}, {}

def _known(key, x, w):
    if key not in _KNOWN:
        _KNOWN[key] = reference(x, w)
    known = _KNOWN[key]
    return {**known, "y": known["y"].clone(), "stats": tuple(one.clone() for one in known["stats"])}

def kept_by_identity_wrong(x, w):
    return _known(("id", id(x)), x, w)

def kept_by_address_wrong(x, w):
    return _known(("address", x.data_ptr()), x, w)

def kept_by_version_wrong(x, w):
    return _known(("version", x._version), x, w)

def kept_by_shape_wrong(x, w):
    return _known(("shape", x.shape), x, w)

def _prepared(key, x, w):
    return reference(x, _KNOWN.setdefault(("prepared", key), w.clone()))

def weight_kept_wrong(x, w):
    return _prepared("once", x, w)

def weight_kept_by_identity_wrong(x, w):
    return _prepared(id(w), x, w)

def weight_kept_by_address_wrong(x, w):
    return _prepared(w.data_ptr(), x, w)

def weight_kept_by_version_wrong(x, w):
    return _prepared(("version", w._version), x, w)

def weight_kept_by_shape_wrong(x, w):
    return _prepared(("shape", w.shape), x, w)

def mean_kept_wrong(x, w):
    mean = _KNOWN.setdefault("mean", x.mean(-1, keepdim=True))
    return _with(x, w, y=(x - mean) * reference(x, w)["stats"][1] * w)

def table_by_shape_right(x, w):
    ones = _KNOWN.setdefault(("ones", w.shape), torch.ones_like(w))
    return _with(x, w, y=reference(x, ones)["y"] * w)

def by_values_right(x, w):
    return _prepared(tuple(w.tolist()), x, w)

def refuses_other_values_right(x, w):
    assert (w >= 0.5).all()
    return reference(x, w)
'''


# A layer in the way of Hugging Face: a module among the inputs, hidden states beside a cache of keys and values, and as
# output a mapping with attributes.
LAYER = """
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as attention

Cache = namedtuple("Cache", "keys values length")

@dataclass
class Output:
    last_hidden_state: torch.Tensor
    past_key_values: tuple
    attentions: tuple | None = None

class _Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, hidden_states, past, causal=True):
        self.calls += 1
        b, t, d = hidden_states.shape
        qkv = self.qkv(self.norm(hidden_states)).chunk(3, -1)
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in qkv)
        keys, values = torch.cat([past.keys, k], 2), torch.cat([past.values, v], 2)
        length = past.length + t
        mask = torch.ones(t, length, dtype=torch.bool).tril(past.length) if causal else None
        y = attention(q, keys, values, attn_mask=mask).transpose(1, 2).reshape(b, t, d)
        return Output(hidden_states + self.out(y), (Cache(keys, values, length),))

def inputs(batch=2, tokens=8, past=4, dim=32, heads=4):
    shape = batch, heads, past, dim // heads
    past = Cache(torch.randn(shape), torch.randn(shape), past)
    return torch.randn(batch, tokens, dim), past, _Layer(dim, heads)

def reference(hidden_states, past, layer):
    return layer(hidden_states, past)

def _cache(output, **changed):
    return replace(output, past_key_values=(output.past_key_values[0]._replace(**changed),))

def plain_right(hidden_states, past, layer):
    return reference(hidden_states, past, layer)

def by_batch_right(hidden_states, past, layer):
    keys, values, length = past
    parts = [layer(x[None], Cache(k[None], v[None], length)) for x, k, v in zip(hidden_states, keys, values)]
    layer.calls -= len(parts) - 1
    caches = [part.past_key_values[0] for part in parts]
    cache = Cache(*(torch.cat([getattr(one, name) for one in caches]) for name in ("keys", "values")), caches[0].length)
    return Output(torch.cat([part.last_hidden_state for part in parts]), (cache,))

def lays_out_weights_once_right(hidden_states, past, layer, known=[]):
    known or known.append(layer.qkv.weight.t().contiguous())
    layer.qkv.forward = lambda x: x @ known[0] + layer.qkv.bias
    try:
        return layer(hidden_states, past)
    finally:
        del layer.qkv.forward

def cached_values_wrong(hidden_states, past, layer):
    output = layer(hidden_states, past)
    return _cache(output, values=output.past_key_values[0].keys)

def short_cache_wrong(hidden_states, past, layer):
    output = layer(hidden_states, past)
    return _cache(output, keys=output.past_key_values[0].keys[:, :, past.length:])

def other_length_wrong(hidden_states, past, layer):
    return _cache(layer(hidden_states, past), length=past.length)

def no_cache_wrong(hidden_states, past, layer):
    return replace(layer(hidden_states, past), past_key_values=())

def more_wrong(hidden_states, past, layer):
    return replace(layer(hidden_states, past), attentions=(hidden_states,))

def only_states_wrong(hidden_states, past, layer):
    return layer(hidden_states, past).last_hidden_state

def no_mask_wrong(hidden_states, past, layer):
    return layer(hidden_states, past, causal=False)

def kept_wrong(hidden_states, past, layer, known=[]):
    known or known.append(layer(hidden_states, past))
    return _cache(replace(known[0], last_hidden_state=known[0].last_hidden_state.clone()))
"""


# What is in the arguments after a call counts as what it returns: an average, a counter in a dict, buffers of a module.
STATE = """
import torch

def inputs(batch=16, channels=8):
    state = {"mean": torch.randn(channels), "steps": torch.tensor(5)}
    return 1 + 2 * torch.randn(batch, channels), state, torch.nn.BatchNorm1d(channels)

def reference(x, state, norm):
    state["mean"].mul_(0.9).add_(x.mean(0), alpha=0.1)
    state["steps"] += 1
    return norm(x) - state["mean"]

def _copied(state):
    return {name: tensor.clone() for name, tensor in state.items()}

def plain_right(x, state, norm):
    return reference(x, state, norm)

def other_order_right(x, state, norm):
    y = norm(x)
    state["mean"].lerp_(x.sum(0) / len(x), 0.1)
    state["steps"].add_(1)
    return y - state["mean"]

def stale_wrong(x, state, norm):
    return reference(x, _copied(state), norm)

def replaced_right(x, state, norm):
    new = _copied(state)
    y = reference(x, new, norm)
    state.update(new)
    norm.running_mean = norm.running_mean.clone()
    return y

def replaced_wrong(x, state, norm):
    y = reference(x, state, norm)
    norm.running_mean = norm.running_mean * 1.01
    return y

def zeroed_wrong(x, state, norm):
    y = reference(x, state, norm)
    state["mean"].zero_()
    return y

def last_of_mean_wrong(x, state, norm):
    last = state["mean"][-1].clone()
    y = reference(x, state, norm)
    state["mean"][-1] = last
    return y

def not_counted_wrong(x, state, norm):
    y = reference(x, state, norm)
    state["steps"] -= 1
    return y

def functional_wrong(x, state, norm):
    y = reference(x, state, norm)
    norm.reset_running_stats()
    return y

def biased_wrong(x, state, norm):
    before = norm.running_var.clone()
    y = reference(x, state, norm)
    norm.running_var.copy_(0.9 * before + 0.1 * x.var(0, correction=0))
    return y

def changes_x_wrong(x, state, norm):
    y = reference(x, state, norm)
    x[0, 0] = 0
    return y

def changes_weight_wrong(x, state, norm):
    y = reference(x, state, norm)
    norm.weight.data.mul_(1.5)
    return y
"""


# A function that returns nothing.
IN_PLACE = """
import torch

def inputs(batch=2, length=16, dim=8, new=3):
    return *torch.randn(2, batch, length, dim), *torch.randn(2, batch, new, dim), torch.tensor([0, 9])

def reference(k, v, new_k, new_v, at):
    for b, start in enumerate(at.tolist()):
        k[b, start : start + new_k.shape[1]] = new_k[b]
        v[b, start : start + new_v.shape[1]] = new_v[b]

def plain_right(k, v, new_k, new_v, at):
    reference(k, v, new_k, new_v, at)

def scattered_right(k, v, new_k, new_v, at):
    rows = at[:, None] + torch.arange(new_k.shape[1])
    k[torch.arange(len(k))[:, None], rows] = new_k
    v[torch.arange(len(k))[:, None], rows] = new_v

def returns_them_right(k, v, new_k, new_v, at):
    reference(k, v, new_k, new_v, at)
    return k, v

def nothing_wrong(k, v, new_k, new_v, at):
    pass

def one_wrong(k, v, new_k, new_v, at):
    reference(k, v.clone(), new_k, new_v, at)

def copies_wrong(k, v, new_k, new_v, at):
    k, v = k.clone(), v.clone()
    reference(k, v, new_k, new_v, at)
    return k, v

def changes_new_wrong(k, v, new_k, new_v, at):
    reference(k, v, new_k, new_v, at)
    new_k.zero_()

def changes_more_wrong(k, v, new_k, new_v, at):
    reference(k, v, new_k, new_v, at)
    k[0, 15, 5] += 1
"""


@pytest.fixture(
    params=[(FILE, 40), (LAYER, 10), (STATE, 10), (IN_PLACE, 8)], ids=["normalization", "layer", "state", "in_place"]
)
def module(request, tmp_path):
    text, least = request.param
    path = tmp_path / f"{request.node.callspec.id}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look for it
    spec.loader.exec_module(module)
    assert len(own_file.read(path).implementations) >= least
    yield module
    del sys.modules[path.stem]


def test_functions_have_the_same_verdict_through_both(module, run):
    import torch

    names = own_file.read(module.__file__).implementations
    torch.manual_seed(0)
    args = module.inputs()
    alone = [name for name in names if name.startswith("changes")]  # beside it, inputs are restored for all others
    through_bench = {}
    for together in ([name for name in names if name not in alone], *([name] for name in alone)):
        functions = {name: getattr(module, name) for name in together}
        compared = bench(functions, *args, check=module.reference, max_s=0.001)
        through_bench |= {each.name: each.correct for each in compared}
    quick = ("device=cpu", "quick=true", "measure.benchmark.max_s=0.001", "measure.benchmark.paired_rounds=0")
    result = run(f"workload={module.__file__}", f"impl={','.join(names)}", "-m", *quick)
    rows = result.rows()
    through_command = {row["case"]["impl"]["name"]: row["metrics"].get("correct") for row in rows}
    expected = {name: not name.endswith("_wrong") for name in names}
    assert through_bench == expected
    assert through_command == expected, {row["case"]["impl"]["name"]: row["reason"] for row in rows}
