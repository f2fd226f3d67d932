"""SpotChecks: judge outputs of calls at random places among the timed ones."""

from collections.abc import Callable, Sequence
from random import Random, SystemRandom

from torch import Tensor

from . import ranks
from .correctness import same_bits

MOST = 20  # outputs: a call that is wrong at random one time in five passes with a probability of 1 %
SHARE, LEAST_S = 0.1, 0.01  # share of a series' time for checks, and least time, since a case takes over 0.1 s anyway

Judge = Callable[[Sequence[object]], str]


class SpotChecks:
    """Judge the outputs of up to ``MOST`` calls of a series, within a tenth of its time.

    The first correct outputs are kept. Later outputs with the same bits need no full comparison.
    """

    def __init__(self, judge: Judge | None = None) -> None:
        """Judge by ``judge``, which returns what is wrong or ""; None: nothing is judged."""
        self.count = 0  # outputs that were judged
        self.wrong = ""  # the first error
        self._judge = judge
        self._right: list[Tensor] = []
        self._chance = Random(ranks.current.agreed(SystemRandom().getrandbits(53)))  # a call could not know it
        self._rate = 0.0  # checks for each sample
        self._began = self._spent_s = self._cost_s = 0.0

    def begin(self, samples: float, cost_s: float) -> None:
        """Spread the checks over a series of about so many ``samples`` of ``cost_s`` seconds."""
        self._rate, self._cost_s = MOST / max(1.0, samples), 3 * cost_s
        self._began = ranks.current.now()

    def due(self) -> bool:
        """Draw whether the outputs of the next sample are judged."""
        return self._chance.random() < self._rate and self.affordable()

    def affordable(self) -> bool:
        """Return whether another output is to be judged, and the time allows it."""
        if self._judge is None or self.wrong or self.count >= MOST:
            return False
        allowed_s = max(LEAST_S, SHARE * (ranks.current.now() - self._began))
        return self._spent_s + self._cost_s <= allowed_s

    def judge(self, make: Callable[[], Sequence[Tensor]]) -> None:
        """Judge the outputs that ``make`` returns, unless one was wrong already."""
        if self._judge is None or self.wrong:
            return
        started, first = ranks.current.now(), not self.count
        outputs = make()
        known = 0 < len(self._right) == len(outputs) and all(map(same_bits, outputs, self._right))
        judged = ranks.current.any(not known)  # by all ranks then, since a reference may communicate
        self.wrong = ranks.current.first(self._judge(outputs) if judged else "")
        if not self.wrong and first:
            self._right = [output.clone() for output in outputs]
        self.count += 1
        if not first:  # the first is judged whatever it costs
            self._cost_s = ranks.current.now() - started
            self._spent_s += self._cost_s
