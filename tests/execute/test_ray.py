"""``launcher=ray`` on a Ray of this machine: actors and a node are killed, and each case has one row."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from runner.device import processes
from runner.execute import CannotStart, Notice, Ready, Started
from runner.execute.ray import Ray
from runner.execute.shards import Holder, Ledger
from runner.records import schema
from runner.records.bad_input import BadInput
from runner.records.case import CaseRecord, Choice
from runner.records.paired_rounds import PairedRounds
from runner.records.row import Row
from runner.records.settings import Settings

CONF = Path(__file__).resolve().parents[2] / "conf"
SETTINGS = yaml.safe_load((CONF / "launcher" / "ray.yaml").read_text()) | {"gpus_per_actor": 0, "actors": 2}
QUICK = {"samples": 20, "max_s": 0.02, "paired_rounds": 20, "warmup_s": 0.0, "measured_peak": False}
BENCHMARK = yaml.safe_load((CONF / "measure" / "benchmark.yaml").read_text()) | QUICK
del BENCHMARK["quick"]

USER = """
import os, pathlib, signal, time, torch

HERE = pathlib.Path(__file__).parent

def right(x): return torch.nn.functional.gelu(x, approximate="tanh")
def other(x): return right(x)
def crashes(x): os.abort()
def hangs(x): time.sleep(1000)

def size(path): return path.stat().st_size if path.exists() else 0
def kill_actor(name):
    heard, killed = HERE / f"{name}.heard", HERE / f"{name}.killed"
    while size(heard) <= size(killed): time.sleep(0.01)  # the driver hears that it has begun
    killed.write_text("x" * (size(killed) + 1))
    status = pathlib.Path(f"/proc/{os.getppid()}/status").read_text()  # of what this process was forked from
    os.kill(int(status.partition("PPid:")[2].split()[0]), signal.SIGKILL)
    time.sleep(1000)
def kills_once(x):
    if not (HERE / "kills_once.killed").exists(): kill_actor("kills_once")
    return right(x)
def kills(x): kill_actor("kills")
"""


@pytest.fixture
def grid(tmp_path):
    """Make cases of the functions above, given as (function, cols)."""
    (tmp_path / "user.py").write_text(USER)

    def build(*asked):
        fields = {
            "rows": 64,
            "form": "tanh",
            "pass": "fwd",
            "dtype": "float32",
            "tf32": False,
            "data": "normal",
            "layout": "contiguous",
        }
        measures = (Choice.from_record(BENCHMARK),)
        return [
            CaseRecord(
                Choice("gelu", fields | {"cols": cols}),
                Choice("file", {"path": f"{tmp_path}/user.py:{name}"}),
                measures,
                Settings("cpu", 0),
            )
            for name, cols in asked
        ]

    return build


def launcher(**settings) -> Ray:
    return schema.build(Ray, {k: v for k, v in (SETTINGS | settings).items() if k != "name"}, "launcher")


def name(event: Row | Started) -> str:
    return str(event.case.impl.fields["path"]).rpartition(":")[2]


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


QUICKLY = {"initial_delay_ms": "500", "period_ms": "500", "failure_threshold": "2"}  # Ray sees a death in 1 s, not 15


@pytest.fixture
def left_behind(monkeypatch, tmp_path, survivors):
    """Return the processes of this test that do not end."""
    for setting, value in QUICKLY.items():
        monkeypatch.setenv(f"RAY_health_check_{setting}", value)
    mark = f"TEST_OF_RAY={tmp_path}"
    monkeypatch.setenv(*mark.split("="))
    return lambda: survivors(mark)


@pytest.mark.long
def test_a_case_that_crashes_and_two_that_kill_their_actor(grid, tmp_path, left_behind):
    cases = grid(("right", 64), ("kills_once", 65), ("right", 65), ("kills", 66), ("right", 66), ("crashes", 67))
    cases += grid(("other", 64), ("right", 68), ("other", 68))
    before = set(sys.modules)
    events = []
    for event in launcher().run(cases, str(tmp_path / "worker.log")):
        events.append(event)
        if isinstance(event, Started):
            with open(tmp_path / f"{name(event)}.heard", "a") as heard:
                heard.write("x")
    rows = of(Row, events)
    assert sorted(row.case.key for row in rows) == sorted(case.key for case in cases)
    became = {"right": "ok", "other": "ok", "kills_once": "ok", "kills": "lost", "crashes": "crashed"}
    assert {name(row): row.status for row in rows} == became
    (lost,) = [row for row in rows if row.status == "lost"]
    assert lost.reason.startswith("in flight when its process died, for the second time: actor-")
    environments = [ready.environment for ready in of(Ready, events)]
    assert all(each["hostname"] and each["ray_node"] and each["torch"] for each in environments)
    assert f" on {environments[0]['hostname']}, " in lost.reason
    assert all(row.fingerprint for row in rows if row.status == "ok")
    assert sum("has died" in notice.text for notice in of(Notice, events)) == 3
    starts = [name(start) for start in of(Started, events)]
    assert (starts.count("kills_once"), starts.count("kills")) == (2, 2)
    assert of(PairedRounds, events), "the cases of a problem were together, and compared"
    assert "torch" not in set(sys.modules) - before
    assert not left_behind()


@pytest.mark.long
def test_a_node_of_a_running_cluster_is_killed(grid, tmp_path, left_behind):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 * 2**20})
    try:
        nodes = [cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20) for _ in range(2)]
        cases = grid(*[(function, cols) for cols in range(64, 68) for function in ("right", "other")])
        events, killed = [], ""
        for event in launcher(address=cluster.address, actors=None).run(cases, str(tmp_path / "worker.log")):
            events.append(event)
            if isinstance(event, Started) and not killed:
                killed = of(Ready, events)[0].environment["ray_node"]
                cluster.remove_node(next(node for node in nodes if node.node_id == killed), allow_graceful=False)
    finally:
        cluster.shutdown()
    rows = of(Row, events)
    assert sorted(row.case.key for row in rows) == sorted(case.key for case in cases)
    assert {row.status for row in rows} == {"ok"}
    assert {ready.environment["ray_node"] for ready in of(Ready, events)} == {node.node_id for node in nodes}
    assert any("has died" in notice.text for notice in of(Notice, events))
    assert not left_behind()


@pytest.mark.long
def test_the_death_of_ray_on_this_machine_ends_the_run(grid, tmp_path, left_behind):
    rows = []

    def go():
        for event in launcher(actors=1).run(grid(("right", 64), ("hangs", 65)), str(tmp_path / "worker.log")):
            rows.extend([event] if isinstance(event, Row) else [])
            if isinstance(event, Started) and name(event) == "hangs":
                (raylet,) = [pid for pid in processes.children(os.getpid()) if command(pid) == "raylet"]
                os.kill(raylet, signal.SIGKILL)

    with pytest.raises(CannotStart, match=r"^Ray has died on this machine; to go on: resume=last$"):
        go()
    assert [name(row) for row in rows] == ["right"]
    assert not left_behind()


def command(pid: int) -> str:
    return os.path.basename(Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0])


def nodes(*gpus):
    return [{"Alive": count >= 0, "Resources": {"GPU": count, "CPU": 8.0}} for count in gpus]


@pytest.mark.parametrize(
    ("found", "gpus", "cores", "room"), [([4, 2, -1], 1, 1, 6), ([4, 3], 2, 1, 3), ([4, 0], 1, 4, 2), ([4, 2], 0, 2, 8)]
)
def test_actors_are_as_many_as_fit_on_the_nodes(found, gpus, cores, room):
    assert launcher(cpus_per_actor=cores).room(nodes(*found), gpus) == room


def test_no_room_is_said_at_once():
    with pytest.raises(
        BadInput, match=r"^launcher=ray: no node has 4 GPUs and 1 cores for an actor: 2 GPUs and 8 core"
    ):
        launcher(gpus_per_actor=4).room(nodes(2, 0), 4)


def test_an_actor_asks_for_a_gpu_for_each_rank_which_one_node_must_have(tmp_path, monkeypatch):
    asked = []
    cluster = SimpleNamespace(
        remote=lambda **options: asked.append(options) or (lambda host: host),
        nodes=lambda: nodes(2, 2),
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "here"),
    )
    monkeypatch.setattr("runner.execute.ray._connected", lambda address: nullcontext(cluster))
    case = CaseRecord(Choice("all_reduce", {"ranks": 4}), Choice("torch", {}), (), Settings("cuda", 0))
    with pytest.raises(
        BadInput, match=r"no node has 4 GPUs and 1 cores for all ranks of a case, which run on one node: 2"
    ):
        list(launcher(gpus_per_actor=1, actors=None).run([case], str(tmp_path / "worker.log")))
    assert asked[0]["num_gpus"] == 4


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
def test_a_cluster_that_is_not_there_is_said_at_once(address, grid, tmp_path):
    with pytest.raises(BadInput, match=rf"^launcher.address={address}: \w+: "):
        list(launcher(address=address).run(grid(("right", 64)), str(tmp_path / "worker.log")))


def test_without_the_package_nothing_is_started(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"^launcher=ray needs the package ray: pip install -e '\.\[ray\]'"):
        launcher()


def test_problems_are_given_out_whole(grid):
    ledger = Ledger()
    ledger.add(grid(*[(function, cols) for cols in range(64, 68) for function in ("right", "other")]))
    sizes = []
    while piece := ledger.take(3):
        assert len({case.problem for case in piece}) * 2 == len(piece)
        sizes.append(len(piece) // 2)
    assert sizes == [3, 1]


def test_a_suspect_comes_last_and_alone_and_not_a_third_time(grid):
    cases = grid(("right", 64), ("other", 64), ("right", 65))
    ledger, holder = Ledger(), Holder("actor-0")
    ledger.add(cases)

    def dies(*begun):
        for case in begun:
            ledger.note(holder, Started(case))
        return of(Row, ledger.died(holder, "killed"))

    def takes():
        holder.give(ledger.take(3))
        return [*holder.given.values()]

    assert takes() == cases
    assert dies(cases[0]) == []
    assert takes() == cases[1:]
    for case in cases[1:]:
        assert ledger.note(holder, Row(case=case, status="ok"))
        assert ledger.note(holder, Row(case=case, status="ok")) is None, "it has a row"
    assert takes() == cases[:1]
    (row,) = dies(cases[0])
    assert (row.case, row.status, ledger.left) == (cases[0], "lost", 0)
