"""Ranks that exchange values: here threads, since only memory connects them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from runner.device.exchange import SLOT, Exchange, MeetingPlace
from runner.timing.ranks import Ranks, RanksDiffer


@pytest.fixture
def together():
    """Run a function of (rank, path) on several ranks at once; their results."""

    def go(function, count):
        place = MeetingPlace(count)
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(lambda rank: function(rank, place.path), range(count)))

    return go


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_rank_gets_what_each_gives_in_every_turn(together, count):
    def rounds(rank, path):
        exchange = Exchange(path, rank, count)
        got = []
        for turn in range(20):
            exchange.meet()
            got.append(exchange.gather(bytes([rank]) * (turn * (rank + 1))))
        return got

    expected = [[bytes([rank]) * (turn * (rank + 1)) for rank in range(count)] for turn in range(20)]
    assert together(rounds, count) == [expected] * count


def test_what_is_longer_than_a_slot_comes_in_parts(together):
    sent = [b"a" * (3 * SLOT + 7), b"b"]
    assert together(lambda rank, path: Exchange(path, rank, 2).gather(sent[rank]), 2) == [sent, sent]


def test_ranks_agree_on_what_decides(together):
    def decide(rank, path):
        ranks = Ranks(rank, 2, path)
        return [
            ranks.agreed(rank + 5),
            ranks.any(rank == 1),
            ranks.first(["", "it hangs"][rank]),
            ranks.first("both"),
            ranks.first(""),
            ranks.slowest([rank, 1 - rank, 0.1]),
            ranks.now(),
        ]

    first, second = together(decide, 2)
    assert first == second
    assert first[:-1] == [5, True, "rank 1: it hangs", "both", "", [1, 1, 0.1]]


def test_ranks_at_different_places_fail_instead_of_waiting_forever(together):
    def stray(rank, path):
        ranks = Ranks(rank, 2, path)
        with pytest.raises(RanksDiffer, match=f"rank {1 - rank} gives a .* where rank {rank} gives a"):
            ranks.any(True) if rank else ranks.first("")

    together(stray, 2)


def test_a_process_alone_agrees_with_itself():
    ranks = Ranks()
    assert (ranks.agreed(5), ranks.any(0), ranks.first("no"), ranks.slowest([1.5])) == (5, False, "no", [1.5])
