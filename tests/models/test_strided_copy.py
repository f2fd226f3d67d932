"""strided_copy: the numbers are equal, and those between them are wrong."""

from __future__ import annotations


def test_every_third_number_is_right_and_its_neighbor_is_wrong(make, error):
    workload, (x,) = make("strided_copy", dtype="float16", elements=9, stride=3)
    expected = workload.reference(x)
    assert x.shape == (27,)
    assert error(expected, [x[::3]]) == 0
    assert error(expected, [x[1::3]]) > 1
    assert (workload.flops(), workload.bytes_min()) == (0, 2 * 9 * 2)
