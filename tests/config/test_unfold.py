"""A command line unfolds into the overrides of every case, by Hydra's own parser and config loader."""

from __future__ import annotations

import sys

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config import plan, sweep
from runner.config.compose import Composer
from runner.records.bad_input import BadInput
from runner.records.options import CONF


@pytest.fixture
def compose():
    return Composer()


def points(compose, *arguments, multirun=True):
    return [sorted(point) for point in sweep.unfold(compose, arguments, multirun=multirun)]


def test_a_workload_brings_its_own_axes(compose):
    assert points(compose, "workload=gelu") == [
        ["workload.cols=256", "workload=gelu"],
        ["workload.cols=1024", "workload=gelu"],
        ["workload.cols=4096", "workload=gelu"],
    ]


def test_an_axis_on_the_command_line_replaces_that_axis_only(compose):
    assert points(compose, "workload=gelu", "workload.cols=7") == [["workload.cols=7", "workload=gelu"]]
    assert len(points(compose, "workload=gelu", "workload.rows=7")) == 3


@pytest.mark.parametrize(
    ("given", "cases"),
    [
        (["workload.m=8,16", "workload.n=8", "workload.k=4"], 2),  # nothing is left that the size sets
        (["workload.m=8,16", "workload.n=8"], 2 * 3),
        (["workload.m=8", "workload.n=${workload.m}", "workload.k=${workload.n}"], 1),
        (["workload.m=8", "workload.n=8", "workload.k=${workload.size}"], 3),
        (["workload.size=8,16", "workload.m=8", "workload.n=8", "workload.k=4"], 2),  # as asked, though equal
    ],
)
def test_a_default_axis_that_only_sets_fields_that_are_given_is_dropped(compose, given, cases):
    assert len(points(compose, "workload=matmul", *given)) == cases


def test_each_workload_of_a_grid_keeps_its_own_axes(compose):
    grid = points(compose, "workload=gelu,mlp", "impl=naive,torch")
    assert sum("workload=gelu" in point for point in grid) == 2 * 3
    assert sum("workload=mlp" in point for point in grid) == 2 * 4
    assert all(any(o.startswith("workload.layers=") for o in point) == ("workload=mlp" in point) for point in grid)


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        (["workload=matmul", "workload.shape=[4,5,6],[4k,8,9]"], ["m=4 k=5 n=6", "m=4k k=8 n=9"]),
        (["workload=matmul", "workload.shape=[4,5,6]"], ["m=4 k=5 n=6"]),  # its default axis sets m, k and n alone
        (["workload=gelu,softmax", "workload.shape=[4,5],[4,5],[6,7]"], ["rows=4 cols=5", "rows=6 cols=7"] * 2),
        (["workload=gelu", "axes={workload.shape:[[4,5],[6,7]]}"], ["rows=4 cols=5", "rows=6 cols=7"]),
        (["workload=gelu", "+axes={workload.shape:[[4,5]]}", "workload.shape=[6,7]"], ["rows=6 cols=7"]),
        (["workload=gelu", "workload.dtype=float32,bfloat16", "workload.shape=[4,5]"], ["rows=4 cols=5"] * 2),
        (["workload=cdist", "workload.shape=[4,5,6]", "workload.m=${workload.n}"], None),
    ],
)
def test_a_shape_gives_the_sizes_of_a_workload_in_its_order(compose, given, sizes):
    words = [f"+{word}" if word.startswith("axes=") else word for word in given]
    if sizes is None:
        with pytest.raises(BadInput, match=r"^workload.m=.*: a shape gives workload.n, workload.m, workload.d; give"):
            points(compose, *words)
        return
    grid = list(sweep.unfold(compose, words, multirun=True))
    found = [[line.partition(".")[2] for line in case if line.startswith("workload.")] for case in grid]
    assert [" ".join(name for name in case if not name.startswith("dtype")) for case in found] == sizes


def test_without_m_a_shape_is_one_case(compose):
    assert points(compose, "workload.shape=[4,5]", multirun=False) == [["workload.cols=5", "workload.rows=4"]]


def test_named_sets_of_shapes_are_united_and_a_user_may_add_one(tmp_path):
    (tmp_path / "shapes").mkdir()
    (tmp_path / "shapes" / "mine.yaml").write_text("# @package shapes.mine\ngelu: [[4, 5], [1024, 3072]]\n")
    (tmp_path / "shapes" / "bare.yaml").write_text("gelu: [[4, 5]]\n")
    compose = Composer((CONF, tmp_path))
    grid = points(compose, "workload=gelu", "+shapes=[mine,gpt2]")
    assert [point[1:3] for point in grid] == [
        ["workload.cols=5", "workload.rows=4"],
        ["workload.cols=3072", "workload.rows=1024"],
    ]
    with pytest.raises(BadInput, match=r"^shapes: gelu belongs to no set; a YAML of conf/shapes begins with"):
        points(compose, "workload=gelu", "+shapes=bare")


def test_without_m_no_axis_unfolds(compose):
    assert points(compose, "workload=gelu", multirun=False) == [["workload=gelu"]]


def test_without_m_a_sweep_is_refused(compose):
    with pytest.raises(BadInput, match="add -m"):
        points(compose, "impl=naive,torch", multirun=False)


def test_default_axes_false_keeps_a_workloads_axes_folded(compose):
    assert points(compose, "workload=gelu,mlp", "default_axes=false") == [
        ["default_axes=false", "workload=gelu"],
        ["default_axes=false", "workload=mlp"],
    ]


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ("workload.cols=range(1,4)", ["1", "2", "3"]),
        ("workload.cols=choice(5,6)", ["5", "6"]),
        ("workload.cols=8,9", ["8", "9"]),
        ("workload.cols=sort(9,8)", ["8", "9"]),
    ],
)
def test_hydras_own_sweep_syntax_works(compose, axis, values):
    assert [p[0] for p in points(compose, "workload=gelu", axis)] == [f"workload.cols={value}" for value in values]


def test_glob_lists_the_implementations_that_a_workload_has(compose):
    chosen = points(compose, "workload=gelu,histogram", "impl=glob(*)", "default_axes=false")
    of_gelu = {point[1].removeprefix("impl=") for point in chosen if point[2] == "workload=gelu"}
    assert {"compiled", "copy", "torch", "triton", "numba"} < of_gelu
    assert not {"file", "math", "bincount"} & of_gelu  # without a path, and of other workloads
    with pytest.raises(BadInput, match=r"^impl: the pattern names no implementation of the workload; --help with"):
        points(compose, "workload=gelu", "impl=glob(fil*)", "default_axes=false")


OWN = """
def inputs(n=4): return torch.ones(n)
def reference(x, bias=None, *, eps=1e-6): return x
def one(x): return x
def with_bias(x, bias, eps=1e-6): return x
def any_number(*args): return args[0]
made = torch.compile(one)
def three(x, y, z): return x
def configs(): return []
def main(): one()
"""


def test_glob_means_functions_of_a_file_that_take_the_inputs(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["runner"])
    (tmp_path / "op.py").write_text(OWN)
    cases = plan([f"workload={tmp_path}/op.py", "impl=glob(*,exclude=c*)", "-m"]).cases
    names = {case.impl.fields["path"].rpartition(":")[2] for case in cases}
    assert names == {"reference", "one", "with_bias", "any_number", "made"}


def test_an_experiment_sets_axes_over_groups_and_fields(compose):
    grid = points(compose, "+experiment=compare_gelu")
    assert len(grid) == 4 * 2 * 3  # implementations, dtypes, the workload's own axis
    assert len({tuple(o for o in point if o.startswith(("impl", "workload.dtype"))) for point in grid}) == 8


def test_the_command_line_replaces_an_axis_of_an_experiment(compose):
    grid = points(compose, "+experiment=compare_gelu", "impl=torch", "workload.cols=8")
    assert len(grid) == 2
    assert all("impl=torch" in point for point in grid)


def test_an_experiment_may_sweep_workloads_each_with_its_axes(compose):
    grid = points(compose, "+experiment=demo", "default_axes=true", "impl=torch", "on_cpu=null")
    assert sum("workload=mlp" in point for point in grid) == 4
    assert sum("workload=matmul" in point for point in grid) == 3


def test_an_axis_without_values_is_refused(compose):
    with pytest.raises(BadInput, match="empty"):
        points(compose, "workload.cols=range(5,1)")


def test_a_typo_raises_before_any_case_is_made(compose):
    with pytest.raises(HydraException):
        points(compose, "workload=gelu,mpl")


@pytest.mark.parametrize(
    "overrides",
    [
        ["workload=mlp", "workload.layers=9"],
        ["workload=matmul", "workload.size=64", "impl=compiled", "impl.mode=max-autotune"],
        ["+experiment=compare_gelu", "measure.benchmark.samples=77"],
        ["workload=softmax", "+axes.seed=[1,2]"],
    ],
)
def test_a_composed_config_equals_hydras_own(compose, overrides):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        theirs = hydra_compose("config", overrides)
    ours = compose(overrides)
    assert OmegaConf.to_container(ours, resolve=True) == {
        key: value for key, value in OmegaConf.to_container(theirs).items() if key != "hydra"
    } | {"workload": OmegaConf.to_container(theirs.workload, resolve=True)}


@pytest.mark.parametrize(
    "arguments",
    [
        ["workload=gelu,matmul,mlp", "impl=naive,compiled", "impl.of=naive,torch", "seed=0,3"],
        ["workload=matmul", "workload.m=8,9", "workload.n=${workload.m}"],
        ["workload=matmul", "workload.size=8,9", "workload.k=${workload.m}", "workload.m=7"],
        ["workload=matmul", "workload.size=8,9", "workload.k='${workload.size}0'"],
        ["workload=gelu", "columns=[gpu_us,latency_us]", "log=[]", "workload.cols=range(1,5)", "name=a-b"],
        [
            "workload=gelu",
            "measure.benchmark.max_s=0.1,1e-3,2",
            "device='cpu','auto'",
            "baseline=null",
            "time_wrong=true",
        ],
        ["workload=gelu", "+axes.seed=[1,2]", "++workload.cols=3", "workload.rows=range(1,4)"],
        ["workload=gelu", "workload={rows:3}", "workload.cols=4,5"],
        ["workload=softmax", "~workload.axes", "workload.cols=4,5", "impl=glob(*,exclude=[file,compiled])"],
        ["+experiment=compare_gelu", "measure.benchmark.samples=77"],
        ["+experiment=demo"],
    ],
)
def test_a_resolved_config_is_the_composed_one(compose, arguments):
    """Writing values into a template gives the same config as Hydra and OmegaConf."""
    grid = list(sweep.unfold(compose, arguments, multirun=True))
    fresh = Composer()  # has no overrides but those it parsed
    for point in grid:
        assert compose.resolved(point) == OmegaConf.to_container(fresh(point), resolve=True)
    assert len(grid) > 1


def test_options_written_into_another_config_give_the_composed_one(compose):
    for options in (
        [],
        ["workload=softmax", "impl=triton"],
        ["impl=compiled", "launcher=slurm", "workload=mlp"],
        ["+experiment=demo"],
        ["+experiment=demo", "workload=matmul", "impl=cuda"],
        ["measure=[benchmark,memory]", "workload=gelu"],
    ):
        assert compose(options) == Composer()(options)


def test_a_resolved_config_has_the_errors_of_the_composed_one(compose):
    for bad in ("workload.rows=${nope}", "workload.zize=3", "workload.rows.deeper=3", "+workload.rows=3"):
        with pytest.raises((HydraException, OmegaConfBaseException)) as short:
            compose.resolved(["workload=gelu", bad])
        with pytest.raises((HydraException, OmegaConfBaseException)) as long:
            OmegaConf.to_container(compose(["workload=gelu", bad]), resolve=True)
        assert str(short.value) == str(long.value)


def test_resolved_configs_share_nothing_that_differs(compose):
    one, two = (compose.resolved(["workload=gelu", f"workload.cols={cols}"]) for cols in (8, 9))
    assert (one["workload"]["cols"], two["workload"]["cols"]) == (8, 9)
    assert compose.resolved(["workload=gelu"])["workload"]["cols"] == 4096


@pytest.mark.parametrize("multirun", [True, False])
@pytest.mark.parametrize(
    ("word", "path", "value"),
    [
        ("launcher.gpus=0,2", "launcher.gpus", "0,2"),
        ("launcher.gpus=GPU-1a,GPU-2b", "launcher.gpus", "GPU-1a,GPU-2b"),
        ("resume.retry=oom,crashed", "resume.retry", ["oom", "crashed"]),
        ("columns=gpu_us,latency_us", "columns", ["gpu_us", "latency_us"]),
    ],
)
def test_several_values_of_what_belongs_to_the_run_are_no_sweep(compose, multirun, word, path, value):
    (lines,) = sweep.unfold(compose, ["workload=gelu", "workload.cols=8", word], multirun=multirun)
    assert OmegaConf.select(compose(lines), path) == value


def test_a_run_has_one_launcher(compose):
    with pytest.raises(BadInput, match="launcher=local,ray: a run has one launcher; name one"):
        list(sweep.unfold(compose, ["workload=gelu", "launcher=local,ray"], multirun=True))


@pytest.mark.parametrize("multirun", [True, False])
@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("impl=[torch,naive]", r"impl=\[torch,naive\]: takes one option; to sweep: impl=torch,naive -m"),
        ("workload=[gelu,'mlp']", r"workload=\[gelu,'mlp'\]: takes one option; to sweep: workload=gelu,mlp -m"),
        ("+experiment=[compare_gelu,demo]", r"takes one option; to sweep: \+experiment=compare_gelu,demo -m"),
        ("impl=[torch,compiled],naive", "takes one option; to sweep: impl=torch,compiled,naive -m"),
        ("+axes={impl:[[torch,naive]]}", "takes one option; to sweep: impl=torch,naive -m"),
        ("launcher=[local,ray]", r"launcher=\[local,ray\]: a run has one launcher; name one"),
        ("impl=null", "impl=null: impl takes the name of an option; "),
        ("workload=3", "workload=3: workload takes the name of an option; one of: adamw, add, "),
        ("measure=null", "measure=null: measure takes the name of an option; one of: benchmark, "),
    ],
)
def test_a_group_takes_one_option(compose, multirun, word, line):
    if word.startswith("+axes") and not multirun:
        line = "a sweep; add -m"
    with pytest.raises(BadInput, match=line):
        points(compose, word, multirun=multirun)


def test_one_option_may_stand_in_a_list_and_a_case_may_be_measured_in_several_ways(compose):
    assert len(points(compose, "impl=[torch]", "measure=[benchmark,profile],[benchmark]", "default_axes=false")) == 2


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("measure=benchmark,profile", r"add -m, or take them together: 'measure=\[benchmark,profile\]'$"),
        ("impl=naive,torch", "impl=naive,torch: several values make a sweep; add -m$"),
        ("workload.rows=1,2", r"add -m \(or, if it is one value, quote it within quotes: \"workload.rows='1,2'\"\)$"),
    ],
)
def test_what_several_values_may_have_meant_is_said(compose, word, line):
    with pytest.raises(BadInput, match=line):
        points(compose, word, multirun=False)


def test_composing_twice_leaves_no_trace(compose, monkeypatch):
    monkeypatch.setattr("sys.argv", words := ["a program", "of its own"])
    compose(["workload=gelu", "workload.cols=8"])
    assert compose(["workload=gelu"]).workload.cols == 4096
    assert sys.argv is words


def test_a_field_applies_to_the_options_of_the_sweep_that_have_it(compose):
    grid = points(
        compose,
        "workload=gelu,matmul",
        "workload.size=8",
        "workload.cols=8",
        "impl=torch,compiled",
        "impl.of=naive,torch",
    )
    assert len(grid) == 2 * (1 + 2)
    for point in grid:
        assert ("workload.size=8" in point) == ("workload=matmul" in point)
        assert ("workload.cols=8" in point) == ("workload=gelu" in point)
        assert any(o.startswith("impl.of=") for o in point) == ("impl=compiled" in point)


def test_a_field_that_no_option_of_the_sweep_has_is_refused(compose):
    with pytest.raises(HydraException, match="zize"):
        points(compose, "workload=gelu,matmul", "workload.zize=8")


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("+axes.seed=1", r"axes: seed: 1 is not a list; give one, as in seed: \[1\]"),
        ("workload.axes={cols:8}", r"workload.axes: cols: 8 is not a list; give one, as in cols: \[8\]"),
        ("axes=3", r"axes: 3 is not a set of axes; give fields with lists of values, as in axes={workload.cols:\[256,"),
    ],
)
def test_axes_that_are_no_lists_are_named(compose, word, line):
    with pytest.raises(BadInput, match=line):
        points(compose, "workload=gelu", word)


@pytest.mark.parametrize("word", ["+axes={workload.cols:[2,3]}", "workload.axes={cols:[2,3]}"])
def test_axes_on_the_command_line_are_what_is_swept(compose, word):
    assert [OmegaConf.select(compose(p), "workload.cols") for p in points(compose, word)] == [2, 3]


@pytest.mark.parametrize("word", ["axes=null", "~axes"])
def test_no_axes_are_none(compose, word):
    assert len(points(compose, "workload=gelu", word)) == 3


def test_axes_one_at_a_time_are_not_multiplied(compose):
    study = ["workload=mlp", "default_axes=false", "+one_at_a_time={workload.steps:[2,3,4],workload.layers:[4,5]}"]
    fields = [
        {name for name in point if name.startswith(("workload.steps", "workload.layers"))}
        for point in points(compose, *study)
    ]
    assert fields == [
        *({f"workload.steps={n}"} for n in (2, 3, 4)),
        *({f"workload.layers={n}"} for n in (4, 5)),
    ]
    given = points(compose, *study, "workload.steps=7")
    assert [{"workload.steps=7"} <= set(point) for point in given] == [True, True]
    with pytest.raises(BadInput, match="one_at_a_time: impl: options; it takes fields, so move it to axes"):
        points(compose, "+one_at_a_time={impl:[naive,torch]}")


def test_pairs_are_walked_together_and_multiply_with_axes(compose):
    study = ["workload=mlp", "default_axes=false", "+pairs={workload.dim:[8,16],workload.batch:[4,2]}"]
    sizes = [{word for word in point if "dim=" in word or "batch=" in word} for point in points(compose, *study)]
    assert sizes == [{"workload.dim=8", "workload.batch=4"}, {"workload.dim=16", "workload.batch=2"}]
    assert len(points(compose, *study, "workload.layers=2,3", "impl=torch,naive")) == 8
    given = points(compose, *study, "workload.dim=7")
    assert [{"workload.dim=7", f"workload.batch={n}"} <= set(point) for point, n in zip(given, (4, 2), strict=True)]
    options = points(compose, "default_axes=false", "+pairs={workload:[gelu,softmax],impl:[naive,torch],seed:[3,4]}")
    assert [{"workload=gelu", "impl=naive", "seed=3"} <= set(options[0]), len(options)] == [True, 2]
    first, second = points(compose, "+pairs={workload.shape:[[4,8],[2,3]],workload.dtype:[float32,bfloat16]}")
    assert {"workload.rows=4", "workload.cols=8", "workload.dtype=float32"} <= set(first)
    assert {"workload.rows=2", "workload.cols=3", "workload.dtype=bfloat16"} <= set(second)
    with pytest.raises(BadInput, match=r"pairs: 2 of workload\.dim, 1 of workload\.batch; their values are taken"):
        points(compose, "workload=mlp", "+pairs={workload.dim:[8,16],workload.batch:[4]}")
    with pytest.raises(BadInput, match=r"workload\.dim: in axes and in pairs; leave one of them out"):
        points(compose, "workload=mlp", "+axes={workload.dim:[8]}", "+pairs={workload.dim:[8],workload.batch:[4]}")
    with pytest.raises(BadInput, match="add -m"):
        points(compose, *study, multirun=False)


def test_axes_on_a_cpu_replace_those_of_the_same_field(compose):
    study = ["default_axes=false", "+axes={workload.rows:[1024]}", "+one_at_a_time={workload.cols:[512,1024]}"]
    study += ["+on_cpu={workload.rows:[8],workload.cols:[16],quick:[true]}"]
    on_cpu = points(compose, *study, "device=cpu")
    assert [{"workload.cols=16", "workload.rows=8", "quick=True"} <= set(point) for point in on_cpu] == [True]
    assert len(points(compose, *study, "device=cuda")) == 2
    assert all("workload.rows=9" in point for point in points(compose, *study, "device=cpu", "workload.rows=9"))
    with pytest.raises(BadInput, match="add -m"):
        points(compose, *study, multirun=False)


def test_what_an_experiment_sets_holds_for_every_option_of_a_sweep(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nworkload: {rows: 3}\nimpl: {args: {}}\ndefault_axes: false\n"
    )
    sweep = ["+experiment=mine", "workload=gelu,softmax", "impl=naive,triton", "-m"]
    cases = plan(["--config-dir", str(tmp_path), *sweep]).cases
    assert {(case.workload.name, case.impl.name, case.workload.fields["rows"]) for case in cases} == {
        (workload, impl, 3) for workload in ("gelu", "softmax") for impl in ("naive", "triton")
    }


def test_what_an_option_writes_to_other_fields_goes_with_it(tmp_path):
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "mine.yaml").write_text("defaults:\n  - /measure: [memory]\n  - softmax\n")
    compose = Composer((CONF, tmp_path))
    compose(["workload=mine"])
    assert compose(["workload=softmax"]) == Composer()(["workload=softmax"])
