"""Find the fastest arguments of a kernel.

Candidates are all combinations of the values given for impl.args, and the implementation's default. Workloads and
everything else are chosen as for a run; -m is implied, and each problem has its own winner. The candidates of a problem
are sampled in turn, in paired rounds. After 20, 40, 80, ... rounds, those shown to be slower than the fastest are left
out. It ends when one is left, or when the ratios of the others to the fastest are known to target_pct: these cannot be
told from it. The true fastest is left out with a probability of at most 5 %. The winner and the default are then
measured again in other processes, because the times that chose the winner would flatter it.

Exit codes: 0 each problem has a winner; 1 a problem has none; 2 bad input; 130 interrupted.

Examples:
  python -m runner tune workload=softmax workload.cols=1000 impl=triton impl.args.ROWS=1,2,4 impl.args.num_warps=1,2,4,8
  python -m runner tune workload=add impl=file impl.path=my_add.py:add impl.args.BLOCK=1024,4096 device=cpu

"""

from collections.abc import Sequence
from dataclasses import replace

from .. import config
from ..findings import tuning
from ..findings.names import Names
from ..findings.tuning import confirm, confirming, judge, racing
from ..records.bad_input import BadInput
from ..records.plan import Plan
from ..report import reproduce
from ..report.tuning import describe
from ._parser import Parser
from .run import as_sweep, carry_out, early_zygote

PROCESSES = 3  # that measure the winner and the default again, for the gain


def main(argv: Sequence[str]) -> int:
    """Measure, print the winners and how to run them, and return the exit code. Raises BadInput."""
    words = as_sweep(Parser("tune", __doc__, ("overrides",)).parse(argv).overrides)
    with early_zygote(words) as early:
        plan = config.plan(words)
        _check(plan)
        contests = tuning.contests(plan.cases)
        if all(len(contest.cases) == 1 for contest in contests):
            raise BadInput("nothing to tune: give arguments with their values, as in impl.args.BLOCK=512,1024,2048")
        if len(contests) > len({contest.default.problem for contest in contests}):
            mistake = "tune compares the arguments of one implementation; give one, without other fields to sweep"
            raise BadInput(f"impl: {mistake}")
        cases = [case for contest in contests for case in contest.cases]
        plan = replace(plan, cases=tuple(map(racing, cases)), baseline=None)
        session, _ = carry_out(plan, ["tune", *argv], early)
        contests = [judge(contest, *session.grid()) for contest in contests]
        again = [
            confirming(case, process, PROCESSES)
            for process in range(1, PROCESSES + 1)
            for contest in contests
            if contest.fastest and contest.may_gain
            for case in (contest.default, contest.fastest)
        ]
        if again:
            print(f"tune: the winner and the default again, in {PROCESSES} more processes", flush=True)
            session, _ = carry_out(replace(plan, cases=tuple(again)), ["tune", *argv], extended=session)
            contests = [confirm(contest, PROCESSES, *session.grid()) for contest in contests]
    names = Names(cases)
    for contest in contests:
        print("\n".join(describe(contest, names)))
        if contest.fastest and contest.fastest.key != contest.default.key:
            print(f"  to run it: {reproduce.command(contest.fastest)}")
    return 0 if all(contest.fastest for contest in contests) else 1


def _check(plan: Plan) -> None:
    """Raise BadInput if the cases of ``plan`` cannot race."""
    if plan.resume.of:
        raise BadInput("resume: tune cannot go on with an earlier run; leave resume out")
    for case in plan.cases:
        if case.replica:
            raise BadInput("replicas: tune starts processes of its own; leave replicas out")
        if case.settings.debug:
            raise BadInput(f"debug={case.settings.debug}: its timings are not valid; leave debug out")
        if [measure.name for measure in case.measures] != ["benchmark"]:
            raise BadInput("measure: tune compares times; give measure=benchmark alone")
