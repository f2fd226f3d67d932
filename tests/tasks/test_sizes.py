"""The size of a workload file by its source alone."""

from __future__ import annotations

import pytest

from runner.tasks import own_file, sizes


@pytest.fixture
def file(tmp_path):
    """``file(body of inputs, more)``: a workload file with the fields n=8 and m=3."""

    def write(body, more=""):
        path = tmp_path / "own.py"
        path.write_text(f"def inputs(n=8, m=3):\n    {body}\ndef reference(x): return x\n{more}\n")
        return own_file.read(str(path))

    return write


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("return torch.randn(n, m)", 24),
        ("return torch.randn((n, 2 * m)).to(dtype), torch.ones(m, device='cuda')", 51),
        ("rows = n // 2; return torch.randint(0, 100, (rows, m), generator=g)", 12),
        ("a, b = n + 1, m; return dict(x=torch.empty(size=(a, b)))", 27),
        ("shape = (n, m); return torch.zeros(*shape)", 24),
        ("return torch.nn.Linear(n, 4 * n), torch.full((n, n), 0.5)", 320),
        ("return tuple(torch.rand(n, n) for _ in range(3))", 64),
        ("return torch.randn(*SHAPE), torch.randn(f(n))", 0),
        ("return torch.randn(10.0 ** 400 * n)", 0),
    ],
)
def test_numbers_of_shapes_that_are_expressions_of_the_fields(file, body, count):
    assert sizes.numbers(file(body), {}) == count


def test_given_fields_replace_the_defaults(file):
    assert sizes.numbers(file("return torch.randn(n, m)"), {"n": 100}) == 300


def test_what_the_file_says_of_its_work(file):
    more = "def flops(n, m):\n    'Products.'\n    return 2 * n ** 3 * m\ndef bytes(n): return count(n)"
    assert sizes.stated(file("return torch.randn(n)", more), "flops", {"m": 5}) == 2 * 8**3 * 5
    assert sizes.stated(file("return torch.randn(n)", more), "bytes", {}) is None
    assert sizes.stated(file("return torch.randn(n)"), "flops", {}) is None
