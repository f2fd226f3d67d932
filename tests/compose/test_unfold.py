"""Command line → the overrides of every case, through Hydra's own parser and config loader."""

from __future__ import annotations

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf

from runner.compose import CONF, kernel_options, sweeper
from runner.compose.composer import Composer
from runner.errors import BadInput


@pytest.fixture
def compose():
    sweeper.register()
    kernel_options.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield Composer(GlobalHydra.instance().config_loader(), "config")


def points(compose, *arguments, multirun=True):
    return [sorted(point) for point in sweeper.unfold(compose, arguments, multirun=multirun)]


def test_a_workload_brings_its_own_axes(compose):
    assert points(compose, "workload=gelu") == [
        ["workload.cols=256", "workload=gelu"],
        ["workload.cols=1024", "workload=gelu"],
        ["workload.cols=4096", "workload=gelu"],
    ]


def test_an_axis_on_the_command_line_replaces_that_axis_only(compose):
    assert points(compose, "workload=gelu", "workload.cols=7") == [["workload.cols=7", "workload=gelu"]]
    assert len(points(compose, "workload=gelu", "workload.rows=7")) == 3


def test_each_workload_of_a_grid_keeps_its_own_axes(compose):
    grid = points(compose, "workload=gelu,mlp", "impl=naive,torch")
    assert sum("workload=gelu" in point for point in grid) == 2 * 3
    assert sum("workload=mlp" in point for point in grid) == 2 * 4
    assert all(any(o.startswith("workload.layers=") for o in point) == ("workload=mlp" in point) for point in grid)


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


def test_glob_lists_the_options_of_a_group(compose):
    chosen = {point[0] for point in points(compose, "impl=glob(*)", "default_axes=false") for point in [point[1:]]}
    assert chosen == {"impl=compiled", "impl=file", "impl=naive", "impl=torch", "impl=triton"}


def test_an_experiment_sets_axes_over_groups_and_fields(compose):
    grid = points(compose, "+experiment=compare_gelu")
    assert len(grid) == 4 * 2 * 3  # implementations, dtypes, the workload's own axis
    assert len({tuple(o for o in point if o.startswith(("impl", "workload.dtype"))) for point in grid}) == 8


def test_the_command_line_replaces_an_axis_of_an_experiment(compose):
    grid = points(compose, "+experiment=compare_gelu", "impl=torch", "workload.cols=8")
    assert len(grid) == 2
    assert all("impl=torch" in point for point in grid)


def test_an_experiment_may_sweep_workloads_each_with_its_axes(compose):
    grid = points(compose, "+experiment=demo", "default_axes=true", "impl=torch")
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
    loader = GlobalHydra.instance().hydra
    theirs = loader.compose_config("config", overrides, run_mode=sweeper_run_mode(), with_log_configuration=False)
    ours = compose(overrides)
    assert OmegaConf.to_container(ours, resolve=True) == {
        key: value for key, value in OmegaConf.to_container(theirs).items() if key != "hydra"
    } | {"workload": OmegaConf.to_container(theirs.workload, resolve=True)}


def sweeper_run_mode():
    from hydra.types import RunMode

    return RunMode.RUN


def test_composing_twice_leaves_no_trace(compose):
    compose(["workload=gelu", "workload.cols=8"])
    assert compose(["workload=gelu"]).workload.cols == 4096


def test_hydra_still_asks_where_a_plugin_comes_from():
    """The hook that sweeper.register() widens; if Hydra drops it, the patch must go too."""
    from hydra.core.plugins import Plugins

    assert callable(Plugins.is_in_toplevel_plugins_module)
    sweeper.register()
    assert Plugins.is_in_toplevel_plugins_module("runner.compose.sweeper.GridSweeper")
    assert not Plugins.is_in_toplevel_plugins_module("os.path")


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
