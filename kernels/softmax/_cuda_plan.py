"""Which kernel of softmax.cu for which rows, and how it is launched. Knows no GPU: all it needs is handed in.

| a row, in vectors of 16 bytes | kernel |
| --- | --- |
| up to 1024; 4096 of float32; 8192 before sm_90 | ``softmax_rows``: in the registers of a block |
| up to 32768, from sm_90 on | ``softmax_cluster``: in those of 2, 4, 8 or 16 blocks |
| more, from sm_90 on | ``softmax_ring``: through the shared memory of the whole GPU |
| more on older GPUs; float64; not contiguous; not whole vectors | ``softmax_general``: read twice |
| few of those | ``softmax_parts``, then ``softmax_whole``: the same by all blocks, in two launches |
"""

from __future__ import annotations

from dataclasses import dataclass

VECTOR = 16  # bytes
# Rows in registers: the longest in vectors, threads, rows of a block, and blocks that a multiprocessor has room for at
# least. Of 64 registers a thread, 32 hold x; where the last is 1, rows are short and more registers are faster.
IN_REGISTERS = (
    (128, 32, 8, 1),
    (256, 32, 4, 1),
    (512, 64, 2, 1),
    (1024, 128, 2, 1),
    (2048, 512, 1, 2),
    (4096, 512, 1, 2),
    (8192, 1024, 1, 1),  # at 83 to 93 % of copy: where there are no clusters
)
# Vectors, by bytes of an element, where there are clusters. In bfloat16, of 2048 one block a row is at 97 % of copy and
# a cluster of 2 at 100; of 4096 one is at 97 and a cluster of 4 at 98. In float32 one block is at 98 % of either.
REGISTER_ROW = {2: 1024, 4: 4096}

# Rows in clusters: the longest in vectors; threads of a block, vectors of each, and blocks of a multiprocessor, which
# then has 64, 128 or 160 KB of x.
IN_CLUSTERS = (
    (2048, 256, 4, 4),
    (4096, 128, 8, 8),
    (32_768, 256, 8, 5),
)

SLOT_THREADS = 256  # that reduce a slot, and as many that finish it
SLOT_VECTORS = 8  # of each
SLOTS = 6
RING_THREADS = 2 * SLOT_THREADS + 64
RING_STATE = 2048  # bytes of shared memory beside the slots, with 1024 that CUDA takes; a test compiles it

GENERAL_ROW = 2048  # elements; shorter ones have a warp
GENERAL_THREADS = 512
GENERAL_BLOCKS = 4  # of a multiprocessor
PART = 16_384  # elements at least


@dataclass(frozen=True)
class Processor:
    """What of a GPU a plan depends on."""

    capability: int  # 90 for sm_90
    multiprocessors: int
    shared: int  # bytes that a block may have
    cluster: int = 16  # blocks of the largest cluster that it runs; more than 8 are not promised


@dataclass(frozen=True)
class Rows:
    """What of a tensor [rows, cols] a plan depends on. Strides are in elements."""

    itemsize: int
    rows: int
    cols: int
    stride: int
    column_stride: int
    aligned: bool  # the first row begins at a multiple of 16 bytes

    @property
    def vectors(self) -> int:
        """Number of 16-byte vectors in a row; 0 if the row is not made of whole, aligned ones."""
        per = VECTOR // self.itemsize
        whole = self.cols % per == 0 and (self.stride % per == 0 or self.rows == 1)
        contiguous = self.column_stride == 1 or self.cols == 1
        return self.cols // per if whole and contiguous and self.aligned else 0


@dataclass(frozen=True)
class Plan:
    """A launch. ``kernel`` has a ``{T}`` for the type."""

    kernel: str
    blocks: int
    threads: int
    shared: int = 0  # bytes
    cluster: int = 1  # blocks
    slices: int = 1  # of a row, each with one block at a time
    slice: int = 0  # elements of all but the last

    @property
    def design(self) -> str:
        """Name of the kernel without its arguments."""
        return self.kernel.partition("<")[0]


def plan(x: Rows, processor: Processor) -> Plan:
    """The fastest kernel there is for ``x``."""
    vectors, hopper = x.vectors, processor.capability >= 90
    if vectors == 0 or x.itemsize == 8 or max(x.rows, vectors) >= 2**31:
        return _general(x, processor)
    if vectors <= (REGISTER_ROW[x.itemsize] if hopper else IN_REGISTERS[-1][0]):
        return _rows(x)
    if not hopper:
        return _general(x, processor)
    return _cluster(x, processor) or _ring(x, processor) or _general(x, processor)


def _rows(x: Rows) -> Plan:
    threads, rows, blocks = next(rest for longest, *rest in IN_REGISTERS if x.vectors <= longest)
    if x.vectors < 32:
        threads, rows = _power_of_2(x.vectors), threads * rows // _power_of_2(x.vectors)
    vectors, sure = -(-x.vectors // threads), x.vectors // threads
    name = f"softmax_rows<{{T}}, {threads}, {rows}, {vectors}, {sure}, {blocks}>"
    return Plan(name, -(-x.rows // rows), threads * rows)


def _cluster(x: Rows, processor: Processor) -> Plan | None:
    """None if a row does not fit into a cluster."""
    threads, each, blocks = next((rest for longest, *rest in IN_CLUSTERS if x.vectors <= longest), (0, 0, 0))
    if threads == 0:
        return None
    cluster = _power_of_2(-(-x.vectors // (threads * each)))
    if cluster > processor.cluster or x.rows * cluster >= 2**31:
        return None
    longest = -(-x.vectors // cluster)
    vectors, sure = -(-longest // threads), (x.vectors - longest * (cluster - 1)) // threads
    name = f"softmax_cluster<{{T}}, {threads}, {vectors}, {sure}, {cluster}, {blocks}>"
    return Plan(name, x.rows * cluster, threads, cluster=cluster)


def _ring(x: Rows, processor: Processor) -> Plan | None:
    """None if a row does not fit into half of the slots there are: the others are filled while it waits."""
    longest = -(-x.vectors // -(-x.vectors // (SLOT_THREADS * SLOT_VECTORS)))
    slices = -(-x.vectors // longest)
    vectors, sure = -(-longest // SLOT_THREADS), (x.vectors - longest * (slices - 1)) // SLOT_THREADS
    shared = SLOTS * SLOT_THREADS * vectors * VECTOR
    if 2 * slices > SLOTS * processor.multiprocessors or shared + RING_STATE > processor.shared:
        return None
    name = f"softmax_ring<{{T}}, {SLOTS}, {SLOT_THREADS}, {vectors}, {sure}>"
    return Plan(name, processor.multiprocessors, RING_THREADS, shared, slices=slices)


def _general(x: Rows, processor: Processor) -> Plan:
    wide = "true" if x.vectors else "false"
    if x.cols < GENERAL_ROW:
        return Plan(f"softmax_general<{{T}}, 32, 8, {wide}>", -(-x.rows // 8), 256)
    parts = min(x.cols // PART, GENERAL_BLOCKS * processor.multiprocessors // x.rows)
    if parts <= 1:
        return Plan(f"softmax_general<{{T}}, {GENERAL_THREADS}, 1, {wide}>", x.rows, GENERAL_THREADS)
    each = -(-x.cols // (parts * VECTOR)) * VECTOR  # whole vectors of any type
    parts = -(-x.cols // each)
    return Plan(
        f"softmax_parts<{{T}}, {GENERAL_THREADS}, {wide}>", x.rows * parts, GENERAL_THREADS, slices=parts, slice=each
    )


def _power_of_2(least: int) -> int:
    return 1 << (least - 1).bit_length()
