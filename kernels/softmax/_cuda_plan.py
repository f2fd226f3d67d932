"""Choose the kernel of softmax.cu and its launch for given rows. All facts about the GPU are arguments.

| length of a row, in vectors of 16 bytes | kernel |
| --- | --- |
| up to 1024; before sm_90 up to 8192 | ``softmax_rows``: in the registers of a block |
| up to 32768, from sm_90 on | ``softmax_cluster``: in the registers of 2, 4, 8 or 16 blocks |
| longer, from sm_90 on | ``softmax_ring``: through the shared memory of the whole GPU |
| longer on older GPUs; float64; not contiguous; not aligned as y is | ``softmax_general``: read twice |
| the same, if there are few rows | ``softmax_parts``, then ``softmax_whole``: by all blocks, in two launches |

A row that is not a whole number of vectors has edges: elements before the first whole vector and after the last one.
"""

from __future__ import annotations

from dataclasses import dataclass

VECTOR = 16  # bytes
# Rows in registers: longest row in vectors, threads of a row, rows of a block, and the least number of blocks on a
# multiprocessor. 32 of the 64 registers of a thread hold x. A 1 at the end allows a thread more registers, which is
# faster for short rows. Rows of up to SHORT_ROW vectors have two vectors for each thread, and share SHORT_THREADS.
SHORT_ROW, SHORT_THREADS = 64, 128
IN_REGISTERS = (
    (96, 32, 4, 1),
    (128, 64, 2, 1),
    (256, 64, 1, 1),
    (512, 64, 2, 1),
    (1024, 128, 2, 1),
    (2048, 512, 1, 2),
    (4096, 512, 1, 2),
    (8192, 1024, 1, 1),  # 83 to 93 % of copy
)
# The longest row in registers on GPUs with clusters, in vectors. bfloat16 rows of 2048 vectors reach 97 % of copy with
# one block and 100 % with a cluster of 2; rows of 4096 reach 97 % and 98 % with a cluster of 4.
REGISTER_ROW = 1024

LONGEST_WITH_EDGES = 6 * 1024  # the same on other GPUs, if a row has edges, which take two registers more

# Rows in clusters: longest row in vectors, threads of a block, vectors of a thread, and blocks of a multiprocessor. A
# multiprocessor then holds 64, 128 or 160 KB of x.
IN_CLUSTERS = (
    (2048, 256, 4, 4),
    (4096, 128, 8, 8),
    (32_768, 256, 8, 5),
)

SLOT_THREADS = 256  # threads that reduce a slot; as many others finish it
SLOT_VECTORS = 8  # vectors of each of these threads
SLOTS = 6
RING_THREADS = 2 * SLOT_THREADS + 64
RING_STATE = 2048  # bytes of shared memory beside the slots, 1024 of them for CUDA itself; a test compiles it

GENERAL_ROW = 2048  # elements; a shorter row gets one warp
GENERAL_THREADS = 512
GENERAL_BLOCKS = 4  # blocks of a multiprocessor
PART = 16_384  # the least number of elements of a part


@dataclass(frozen=True)
class Processor:
    """The properties of a GPU that a plan depends on."""

    capability: int  # 90 for sm_90
    multiprocessors: int
    shared: int  # bytes of shared memory that a block may use
    cluster: int = 16  # blocks of the largest cluster; more than 8 are not guaranteed


@dataclass(frozen=True)
class Rows:
    """The properties of a tensor [rows, cols] that a plan depends on. Strides are in elements."""

    itemsize: int
    rows: int
    cols: int
    stride: int
    column_stride: int
    aligned: bool  # the address of the first row is a multiple of 16 bytes

    @property
    def vectors(self) -> int:
        """Number of whole 16-byte vectors in a row; 0 if they do not lie as in the output, or are not aligned."""
        per = VECTOR // self.itemsize
        alike = (self.cols - self.stride) % per == 0 or self.rows == 1
        contiguous = self.column_stride == 1 or self.cols == 1
        long = self.cols % per == 0 or 2 * per <= self.cols < 2**31 - VECTOR
        return self.cols // per if alike and contiguous and self.aligned and long else 0

    @property
    def edges(self) -> bool:
        """Whether elements lie before the first whole vector of a row, or after the last one."""
        return self.vectors > 0 and self.cols % (VECTOR // self.itemsize) > 0

    @property
    def least(self) -> int:
        """Number of whole vectors in the row that has the fewest."""
        return self.vectors - self.edges


@dataclass(frozen=True)
class Plan:
    """A launch. ``kernel`` contains ``{T}`` in place of the type."""

    kernel: str
    blocks: int
    threads: int
    shared: int = 0  # bytes of shared memory of a block
    cluster: int = 1  # blocks of a cluster
    slices: int = 1  # slices of a row, each for one block
    slice: int = 0  # elements of a slice; the last one may have fewer
    edges: bool = False  # strides and lengths are in elements, not in vectors

    @property
    def design(self) -> str:
        """Name of the kernel without template arguments."""
        return self.kernel.partition("<")[0]


def plan(x: Rows, processor: Processor) -> Plan:
    """Return the launch of the fastest kernel for ``x`` on ``processor``."""
    vectors, hopper = x.vectors, processor.capability >= 90
    if vectors == 0 or x.itemsize == 8 or max(x.rows, vectors) >= 2**31:
        return _general(x, processor)
    if vectors <= (REGISTER_ROW if hopper else LONGEST_WITH_EDGES if x.edges else IN_REGISTERS[-1][0]):
        return _rows(x)
    if not hopper:
        return _general(x, processor)
    return _cluster(x, processor) or _ring(x, processor) or _general(x, processor)


def _rows(x: Rows) -> Plan:
    if x.vectors <= SHORT_ROW:
        threads = max(_power_of_2(-(-x.vectors // 2)), 2 * VECTOR // x.itemsize if x.edges else 1)  # one for each edge
        rows, blocks = SHORT_THREADS // threads, 1
    else:
        threads, rows, blocks = next(rest for longest, *rest in IN_REGISTERS if x.vectors <= longest)
    vectors, sure = -(-x.vectors // threads), x.least // threads
    name = f"softmax_rows<{{T}}, {threads}, {rows}, {vectors}, {sure}, {blocks}, {_bool(x.edges)}>"
    return Plan(name, -(-x.rows // rows), threads * rows, edges=x.edges)


def _cluster(x: Rows, processor: Processor) -> Plan | None:
    """Return a plan with clusters; None if a row does not fit into a cluster."""
    threads, each, blocks = next((rest for longest, *rest in IN_CLUSTERS if x.vectors <= longest), (0, 0, 0))
    if threads == 0:
        return None
    cluster = _power_of_2(-(-x.vectors // (threads * each)))
    if cluster > processor.cluster or x.rows * cluster >= 2**31:
        return None
    vectors, sure = -(-x.vectors // (cluster * threads)), _shortest(x, cluster) // threads
    name = f"softmax_cluster<{{T}}, {threads}, {vectors}, {sure}, {cluster}, {blocks}, {_bool(x.edges)}>"
    return Plan(name, x.rows * cluster, threads, cluster=cluster, edges=x.edges)


def _ring(x: Rows, processor: Processor) -> Plan | None:
    """Return a plan with the ring; None if a row needs more than half of all slots. The others are filled meanwhile."""
    longest = -(-x.vectors // -(-x.vectors // (SLOT_THREADS * SLOT_VECTORS)))
    slices = -(-x.vectors // longest)
    vectors, sure = -(-longest // SLOT_THREADS), _shortest(x, slices) // SLOT_THREADS
    shared = SLOTS * SLOT_THREADS * vectors * VECTOR
    if 2 * slices > SLOTS * processor.multiprocessors or shared + RING_STATE > processor.shared:
        return None
    name = f"softmax_ring<{{T}}, {SLOTS}, {SLOT_THREADS}, {vectors}, {sure}, {_bool(x.edges)}>"
    return Plan(name, processor.multiprocessors, RING_THREADS, shared, slices=slices, edges=x.edges)


def _shortest(x: Rows, slices: int) -> int:
    """Return the vectors of the last slice, which has the fewest, in the row that has the fewest of them there."""
    return min(vectors - -(-vectors // slices) * (slices - 1) for vectors in (x.vectors, x.least))


def _general(x: Rows, processor: Processor) -> Plan:
    access = f"Access::{'edges' if x.edges else 'vectors' if x.vectors else 'elements'}"
    if x.cols < GENERAL_ROW:
        return Plan(f"softmax_general<{{T}}, 32, 8, {access}>", -(-x.rows // 8), 256)
    parts = min(x.cols // PART, GENERAL_BLOCKS * processor.multiprocessors // x.rows)
    if parts <= 1:
        return Plan(f"softmax_general<{{T}}, {GENERAL_THREADS}, 1, {access}>", x.rows, GENERAL_THREADS)
    each = -(-x.cols // (parts * VECTOR)) * VECTOR  # whole vectors of any type
    parts = -(-x.cols // each)
    return Plan(
        f"softmax_parts<{{T}}, {GENERAL_THREADS}, {access}>", x.rows * parts, GENERAL_THREADS, slices=parts, slice=each
    )


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _power_of_2(least: int) -> int:
    return 1 << (least - 1).bit_length()
