"""Which kernel and tiles a product gets: by size, type and GPU, and always ones that fit."""

from __future__ import annotations

import itertools
import math

import pytest

from runner.kernels.matmul._configurations import ITEMSIZE, configuration, copy_pays, pointers, row_major

HOPPER = {"capability": (9, 0), "multiprocessors": 132}
SHARED = 232_448  # bytes that a program may have on sm_90; 101_376 on sm_86 and sm_89, the least of those with bfloat16
SIZES = [1, 7, 16, 100, 128, 129, 512, 1000, 1024, 2048, 4096, 16384]


def shared_bytes(how, dtype):
    """The tiles that are on their way, and the part of y that is being stored."""
    stage = (how.block_m + how.block_n) * how.block_k * ITEMSIZE[dtype]
    stored = 4 if dtype == "float32" else 2
    store = how.block_m * how.block_n // how.pieces * stored if how.kernel == "descriptors" else 0
    return how.programs * (how.stages * stage + store)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("size", [4096, 8192, 16384])
def test_large_products_on_hopper_take_the_largest_tile(size, dtype):
    how = configuration(size, size, size, dtype, **HOPPER)
    assert (how.kernel, how.block_m, how.block_n, how.split_k) == ("descriptors", 128, 256, 1)
    assert how.block_k * ITEMSIZE[dtype] == 128
    assert (how.stages, how.warps, how.group_m, how.pieces) == (4, 8, 8, 2)


@pytest.mark.parametrize(("m", "n", "k"), [(8192, 8192, 1024), (16384, 5120, 1280)])
def test_where_storing_takes_its_share_two_programs_a_multiprocessor_take_turns(m, n, k):
    how = configuration(m, n, k, "bfloat16", **HOPPER)
    assert (how.block_m, how.block_n, how.warps, how.programs) == (128, 128, 4, 2)


def test_smaller_products_are_cut_so_that_one_wave_fills_the_gpu():
    how = configuration(1024, 1024, 1024, "bfloat16", **HOPPER)
    programs = (1024 // how.block_m) * (1024 // how.block_n) * how.split_k
    assert 100 <= programs <= 132


def test_long_sums_of_triton_small_are_cut_in_parts():
    assert configuration(512, 512, 8192, "bfloat16", **HOPPER).split_k > 1
    assert configuration(512, 512, 512, "bfloat16", **HOPPER).split_k == 1


@pytest.mark.parametrize("m", [1, 16, 64])
def test_few_rows_or_few_columns_are_skinny(m):
    for sizes in ((m, 8192, 8192), (8192, m, 8192)):
        how = configuration(*sizes, "bfloat16", **HOPPER)
        assert how.kernel == "skinny"
        assert how.block_m == max(16, m)
    assert configuration(m, m, 8192, "bfloat16", **HOPPER).kernel == "descriptors"


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (10, 0), (12, 0)])
def test_other_gpus_take_pointers(capability):
    assert configuration(4096, 4096, 4096, "bfloat16", capability=capability, multiprocessors=108).kernel == "pointers"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_products_take_pointers_and_tf32_does_not(dtype):
    assert configuration(4096, 4096, 4096, dtype, **HOPPER).kernel == "pointers"
    assert configuration(4096, 4096, 4096, "float32", **HOPPER, precision="tf32").kernel == "descriptors"


@pytest.mark.parametrize("sizes", [(1, 2**31, 1), (2**31, 8, 8), (8, 8, 2**31 + 8)])
@pytest.mark.parametrize("roles", [True, False])
def test_a_side_that_no_descriptor_can_count_is_left_to_pointers(sizes, roles):
    assert configuration(*sizes, "bfloat16", **HOPPER, roles=roles).kernel == "pointers"
    assert configuration(*(min(size, 2**30) for size in sizes), "bfloat16", **HOPPER).kernel != "pointers"


def test_every_choice_fits_into_shared_memory():
    for m, n, k in itertools.product(SIZES, SIZES, [1, 64, 1000, 16384]):
        for dtype in ITEMSIZE:
            for precision in ("ieee", "tf32x3", "tf32"):
                how = configuration(m, n, k, dtype, **HOPPER, precision=precision)
                assert shared_bytes(how, dtype) <= SHARED - 1024, (m, n, k, dtype, how)
                assert how.stages >= 2
                old = configuration(m, n, k, dtype, capability=(8, 9), multiprocessors=128, precision=precision)
                assert shared_bytes(old, dtype) <= 101_376, (m, n, k, dtype, old)


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "width"),
    [
        (64, 212, 832, "float32", 16),
        (512, 512, 512, "float32", 16),
        (1, 4096, 4096, "float32", 16),
        (64, 5030, 9381, "bfloat16", 4),
        (9000, 7, 5000, "bfloat16", 2),
    ],
)
def test_the_general_kernel_gives_work_to_most_multiprocessors(m, n, k, dtype, width):
    how = pointers(m, n, k, dtype, **HOPPER, precision="tf32x3", loads=row_major(width, width))
    programs = -(-m // how.block_m) * -(-n // how.block_n) * how.split_k
    assert programs >= 80
    assert how.block_k * ITEMSIZE[dtype] == (64 if width == 2 else 128)


def test_a_copy_pays_for_large_products_of_odd_sizes_only():
    machine = {"multiprocessors": 132, "loads": row_major(2, 2)}
    assert copy_pays(6944, 2525, 5760, "bfloat16", copied=(5760 * 2525,), **machine)
    assert not copy_pays(1, 8191, 8191, "bfloat16", copied=(8191, 8191**2), **machine)
    assert not copy_pays(64, 65, 66, "bfloat16", copied=(64 * 66, 65 * 66), **machine)


def test_a_choice_says_what_it_is():
    assert str(configuration(4096, 4096, 4096, "bfloat16", **HOPPER)) == (
        "descriptors 128x256x64, 4 stages, 8 warps, groups of 8"
    )
    assert str(configuration(512, 512, 8192, "bfloat16", **HOPPER)).endswith("parts")


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "kernel"),
    [
        (4096, 4096, 4096, "bfloat16", "roles"),
        (4096, 14336, 4096, "float8_e4m3fn", "roles"),
        (8192, 8192, 512, "float16", "roles"),
        (8192, 8192, 192, "float16", "descriptors"),  # three steps: the ring would be longer than a tile is deep
        (256, 2**24, 512, "bfloat16", "roles"),
        (256, 2**24 + 8, 512, "bfloat16", "descriptors"),  # offsets of 32 bits might overflow
        (8192, 8196, 4096, "bfloat16", "roles"),  # rows of y that no descriptor can store
        (2048, 2048, 2048, "bfloat16", "roles"),  # 256 tiles of 128 x 128, on 132 multiprocessors
        (1024, 1024, 1024, "bfloat16", "descriptors"),  # 32 such tiles
        (4096, 4096, 4096, "float32", "pointers"),
        (16, 8192, 8192, "bfloat16", "skinny"),
    ],
)
def test_warps_have_roles_where_tiles_and_steps_are_many(m, n, k, dtype, kernel):
    machine = {"capability": (9, 0), "multiprocessors": 132}
    assert configuration(m, n, k, dtype, **machine, roles=True).kernel == kernel
    assert configuration(m, n, k, dtype, **machine).kernel == ("descriptors" if kernel == "roles" else kernel)


# m, k, n, the kernel that was fastest of those measured on an H100 or H200 or within 2 %, and its rows and columns
MEASURED = [
    (112, 320, 3648, "descriptors", 64, 64),
    (4096, 2048, 128, "descriptors", 64, 64),
    (58, 1216, 1344, "descriptors", 64, 32),
    (64, 4096, 14336, "skinny", 64, 64),
    (8, 2048, 7168, "skinny", 16, 64),
    (512, 512, 512, "descriptors", 64, 32),
    (1024, 1024, 1024, "descriptors", 64, 128),
    (2048, 2048, 2048, "roles", 128, 256),
    (1024, 768, 2304, "descriptors", 64, 192),
    (3000, 256, 3000, "roles", 128, 192),
    (742, 7872, 3008, "roles", 128, 192),
    (1024, 3648, 8768, "roles", 128, 192),
    (3456, 11520, 768, "roles", 128, 256),
    (3072, 768, 4096, "roles", 128, 256),
    (128, 4096, 4096, "descriptors", 64, 64),
    (257, 4096, 4096, "descriptors", 64, 192),
    (1536, 1536, 1536, "roles", 128, 192),
    (512, 4096, 4096, "descriptors", 128, 128),
    (1024, 4096, 1024, "descriptors", 64, 128),
    (128, 8192, 8192, "descriptors", 64, 128),
    (1664, 4224, 2496, "roles", 128, 256),
    (267, 2880, 9856, "roles", 128, 256),
    (902, 4480, 320, "descriptors", 64, 64),
    (48, 4608, 832, "descriptors", 64, 32),
    (1340, 14264, 1408, "roles", 128, 256),
]


@pytest.mark.parametrize(("m", "k", "n", "kernel", "rows", "cols"), MEASURED)
def test_the_estimate_finds_what_was_fastest(m, k, n, kernel, rows, cols):
    how = configuration(m, n, k, "bfloat16", **HOPPER, roles=True)
    assert (how.kernel, how.block_m, how.block_n) == (kernel, rows, cols)


@pytest.mark.parametrize(
    ("m", "k", "n", "parts"),
    [
        (1, 9840, 448, 8),  # 6.8 us on an H100; in 12 parts 7.4
        (2, 2864, 3136, 1),  # 8.8; in 2 parts 9.4
        (40, 8848, 832, 6),  # 11.1; in 8 parts 12.1
        (166, 7560, 1216, 3),  # 15.5; in 4 parts 17.1
    ],
)
def test_sums_are_cut_in_no_more_parts_than_pay(m, k, n, parts):
    assert configuration(m, n, k, "bfloat16", **HOPPER, roles=True).split_k == parts


@pytest.mark.parametrize(
    ("m", "k", "n", "shared"),
    [
        (6528, 13632, 1984, True),  # 450 us instead of 538 on an H100
        (1641, 15744, 2880, True),  # 201, 237
        (6784, 9856, 640, True),  # 142, 193
        (4096, 4096, 4096, False),  # 3.88 waves
        (8192, 1024, 8192, False),  # 15.52 waves of short sums
        (160, 13952, 13632, False),  # 145, 168: the tiles fill four fifths of a wave
        (512, 512, 65536, False),  # few tiles, whose sums are cut in parts by another kernel
    ],
)
def test_programs_share_the_last_wave_where_it_is_long_and_nearly_empty(m, k, n, shared):
    assert configuration(m, n, k, "bfloat16", **HOPPER, roles=True).shared == shared
    assert ("last wave shared" in str(configuration(m, n, k, "bfloat16", **HOPPER, roles=True))) == shared


@pytest.mark.parametrize(
    ("m", "k", "n", "early"),
    [
        (4, 571, 256, True),  # 4.34 us instead of 4.75 on an H100
        (2, 14207, 1344, True),  # 17.1, 17.7: skinny products may be long
        (144, 512, 481, True),  # 4.96, 5.64
        (384, 7744, 2409, False),  # 65, 58
        (208, 9216, 539, False),  # 23.8, 20.1
    ],
)
def test_skinny_and_short_products_start_before_their_operands_are_copied(m, k, n, early):
    assert configuration(m, n, k, "bfloat16", **HOPPER).early == early


@pytest.mark.parametrize(
    ("m", "k", "n", "copied"),
    [
        (176, 2048, 16356, False),  # 41 us instead of 77 on an H100
        (192, 6848, 2724, False),  # 32, 50
        (16, 3392, 5747, False),  # 20, 41
        (1024, 768, 50257, True),  # 197, 302
        (408, 512, 3343, True),  # 10, 14
        (600, 256, 11050, True),  # 14.2 by torch.compile, which copies; 19.5 by threads
    ],
)
def test_an_operand_whose_rows_are_not_aligned_is_copied_where_that_was_faster(m, k, n, copied):
    machine = {"multiprocessors": 132, "loads": row_major(b=math.gcd(16, 2 * n))}
    assert copy_pays(m, n, k, "bfloat16", copied=(k * n,), **machine) == copied


def test_an_operand_whose_rows_lie_in_two_lines_is_copied_if_the_product_is_large():
    for (m, k, n), copied in (((7104, 7336, 7256), True), ((1344, 1536, 3496), False)):
        how = configuration(m, n, k, "bfloat16", **HOPPER, roles=True, crossed=(False, True))
        assert how.lined == (False, copied)


def test_operands_whose_rows_are_not_aligned_are_copied_if_the_product_is_long():
    long, short = (1472, 640, 3275), (88, 87, 376)
    for (m, n, k), copies in ((long, True), (short, False)):
        how = pointers(m, n, k, "float32", **HOPPER, precision="tf32x3", loads=row_major(4, 4), copied=(m * k,))
        assert how.copies == copies
        assert copies or how.block_n < 64  # with loads of 4 bytes
