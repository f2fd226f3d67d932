"""The device code of a ``.cu`` file as people write it: a kernel and what it uses, without the host code.

A file of a course or of a PyTorch extension also has ``main``, launches ``<<<>>>``, functions of torch's tensors, and
headers that NVRTC lacks. Its text is cut into declarations. A declaration stays if the kernel mentions it, or another
one that stays, and if it can be device code: functions with ``__device__`` or ``constexpr``, types, constants, aliases.
Macros and conditions (``#if``) stay. The rest becomes blank, so that lines keep their numbers.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from . import cuda_cache
from .cuda_kernel import BuildFailed

PRELUDE = Path(__file__).with_name("cuda_prelude.cuh")  # what C's and C++'s headers would declare
SPACES = frozenset(("__global__", "__device__", "__constant__", "__shared__", "__managed__"))
BALANCED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"  # parentheses, to a depth of three
LITERAL = r'R"(?P<mark{0}>[^(\s]*)\(.*?\)(?P=mark{0})"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\''
COMMENT = re.compile(rf"//(?:\\\n|[^\n])*|/\*.*?\*/|({LITERAL.format(1)})", re.DOTALL)
LINKAGE = re.compile(r'\bextern\s*"C(?:\+\+)?"(?!\s*\{)')
TOKEN = re.compile(
    rf"(?P<directive>^[ \t]*\#(?:\\\n|[^\n])*)|(?P<literal>{LITERAL.format(2)})"
    r"|(?P<word>[A-Za-z_]\w*)|\.?\d(?:[eEpP][+-]|'?[\w.])*|(?P<sign>\S)",
    re.DOTALL | re.MULTILINE,
)
WORD = re.compile(r"[A-Za-z_]\w*")
DIRECTIVE = re.compile(r"\s*#\s*(\w+)\s*(.*)", re.DOTALL)
INCLUDED = re.compile(r'[<"]([^">]+)[">]')
BLOCK = re.compile(r'(?:inline\s+)?namespace\b(?P<name>[^={};()]*)$|extern\s*"C(?:\+\+)?"\s*$')
TEMPLATE = re.compile(r"\s*template\s*(?=<)")
ATTRIBUTE = re.compile(rf"\b(?:__\w+__|__declspec|alignas|decltype|sizeof|noexcept|explicit)\s*{BALANCED}")
TYPE = re.compile(r"\b(?:struct|class|union|enum)\b(?:\s+(?:struct|class))?(?:\s+__\w+__)*\s*(\w*)")
FUNCTION = re.compile(r"((?:\w+\s*(?:<[^;{}()]*>)?\s*::\s*)*)(operator\b[^(]*|\w+)\s*(?:<[^;{}()]*>)?\s*\(")
POINTER = re.compile(r"\(\s*\*\s*(\w+)\s*\)")  # of a function, in a typedef or a variable
# Variables on the GPU that a kernel cannot read here, with the reason.
UNSET = {
    "which the host code fills by cudaMemcpyToSymbol": r"\bcudaMemcpyToSymbol\w*(?:<[^<>]*>)?\s*\(\s*&?\s*(\w+)",
    "whose address the host code takes to fill it": r"\bcudaGetSymbolAddress\s*\([^;]*,\s*&?\s*(\w+)\s*\)",
    "a texture or surface reference, which CUDA 12 no longer has": r"\b(?:texture|surface)\s*<[^;=()]*>\s*(\w+)\s*;",
}
VARIABLE = re.compile(r"(\w+)\s*(?=[=\[;,{]|$)")

TORCH = {"Half": "__half", "BFloat16": "__nv_bfloat16"}
OF_TORCH = re.compile(r"\b(?:(?:torch|at|c10)::\w+|(?:Packed)?TensorAccessor(?:32|64)?\b)")  # but for those above
# Headers that stay where device code has such a word. ADDED are added if they are missing, since others bring them.
# Other headers that are not the user's are left out.
DEVICE_HEADERS = {
    r"cuda_fp16\.hp*": r"_*(half|float2half|half2float)\w*|__h(add|mul|fma|sub|div|max|min)\w*",
    r"cuda_bf16\.hp*": r"_*(nv_)?bfloat16\w*|__\w*2bfloat\w*",
    r"cuda_fp[468]\.hp*": r"__nv_\w*fp[468]\w*",
    r"mma\.h": r"nvcuda|wmma",
    r"cooperative_groups(\.h|/.*)": r"cooperative_groups",
    r"cuda_pipeline\w*\.h": r"__pipeline_\w+",
    r"cuComplex\.h": r"cu\w*Complex|cu[A-Z]\w+[fi]?",
    r"math_constants\.h": r"CUDART_\w+",
    r"curand_\w+\.h": r"curand\w*",
    r"cub/.*": r"cub",
    r"(cuda|nv)/.*": r"cuda",
    r"thrust/.*": r"thrust",
    r"(cute|cutlass)/.*": r"cute|cutlass",
}
ADDED = ("cuda_fp16.h", "cuda_bf16.h", "mma.h", "cooperative_groups.h", "math_constants.h")


@dataclass(frozen=True)
class Piece:
    """A declaration: a part of the text."""

    start: int
    end: int
    words: frozenset[str]  # identifiers in it
    names: frozenset[str]  # that it declares
    is_device: bool  # it may be device code
    always: bool = False  # it stays, whether it is mentioned or not
    kernel: str = ""  # its name with its namespaces, of a kernel; "*": not known, a macro makes it
    unmarked: int = -1  # where a function lacks ``__device__``


def kernels(source: Path, folders: Sequence[Path] = ()) -> list[str]:
    """Return the names of the kernels that ``source``, or a file that it includes, declares, in their order."""
    text = _expanded(source, folders)
    return _kernels(_pieces(text, _macros(text)))


def _kernels(pieces: Iterable[Piece]) -> list[str]:
    return list(dict.fromkeys(piece.kernel for piece in pieces if piece.kernel not in ("", "*")))


def device_file(source: Path, kernel: str, folders: Sequence[Path] = ()) -> Path:
    """Return a file, kept in the cache, with the device code of ``kernel``, a C++ name, in ``source``.

    Files that it includes are looked for beside the file that does, beside ``source``, and in ``folders``. Its
    ``#line`` directives name the user's files. Raises BuildFailed if ``source`` has no such kernel.
    """
    text = device_code(source, kernel, folders).encode()
    place = (cuda_cache.folder() or _scratch()) / f"{source.stem}-{cuda_cache.key(str(source), text.decode())}.cu"
    if not place.is_file() or place.read_bytes() != text:
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".", delete=False) as file:
            file.write(text)
        Path(file.name).replace(place)
    return place


@cache
def _scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="kernel-runner-"))


def device_code(source: Path, kernel: str, folders: Sequence[Path] = ()) -> str:
    """Return the device code of ``kernel`` in ``source``, after what C's headers would declare. Raises BuildFailed."""
    text = _expanded(source, folders)
    macros = _macros(text)
    pieces = _pieces(text, macros)
    name = kernel.partition("<")[0].strip().removeprefix("::")
    if not any(piece.kernel in (name, "*") for piece in pieces):
        raise BuildFailed(f"{source.name} has no kernel {name}; its kernels: {', '.join(_kernels(pieces)) or 'none'}")
    reached = _reached(set(WORD.findall(kernel)), pieces, macros)
    for reason, pattern in UNSET.items():
        if unset := sorted(reached.intersection(re.findall(pattern, text))):
            what = f"{source.name}: {name} reads {unset[0]}, {reason}"
            raise BuildFailed(f"{what}; host code is left out here, so give {unset[0]} to the kernel as a pointer")
    shown = list(text)
    for piece in pieces:
        if not piece.is_device or not (piece.always or piece.names & reached):
            _blank(shown, text, piece.start, piece.end)
        elif of_torch := OF_TORCH.search(text, piece.start, piece.end):
            left_out = f"{source.name}: {name} needs {of_torch[0]}, and torch's headers are left out here"
            raise BuildFailed(f"{left_out}; write it with pointers, sizes and CUDA's types, and give it tensors")
        elif piece.unmarked >= 0:
            shown[piece.unmarked] = f"__host__ __device__ {shown[piece.unmarked]}"
    included = set()
    for match in TOKEN.finditer(text):
        if match["directive"] and (name := _include(match[0])):
            if _is_wanted(name, reached) and "".join(shown[match.start() : match.end()]).strip():
                included.add(name)
            else:
                shown[match.start() : match.end()] = " " * len(match[0])
    added = (f"#include <{name}>\n" for name in ADDED if name not in included and _is_wanted(name, reached))
    return f"{PRELUDE.read_text(encoding='utf-8')}{''.join(added)}{''.join(shown)}\n"


def _expanded(source: Path, folders: Sequence[Path], stack: Sequence[Path] = ()) -> str:
    """Return the text without comments, and with the user's files that it includes. ``stack``: what includes it."""
    text = source.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n").removeprefix("\ufeff")
    text = COMMENT.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), text)
    text = LINKAGE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for name, cuda in TORCH.items():
        text = re.sub(rf"\b(?:at|c10|torch)::{name}\b", cuda, text)
    stack = (*stack, source)

    def replaced(match: re.Match[str]) -> str:
        name = _include(match["directive"] or "")
        near = (source.parent, stack[0].parent, *folders) if name else ()
        places = (Path(os.path.normpath(folder / name)) for folder in near)
        file = next((place for place in places if place.is_file()), None)
        if file is None or file in stack:
            return match[0]
        after = text.count("\n", 0, match.end()) + 2
        return f'{_expanded(file, folders, stack)}\n#line {after} "{source}"'

    whole = TOKEN.sub(replaced, text)
    if once := re.search(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", whole, re.MULTILINE):
        guard = f"RUNNER_{cuda_cache.key(str(source.resolve()))}"
        whole = f"{whole[: once.start()]}{whole[once.end() :]}"
        return f'#ifndef {guard}\n#define {guard}\n#line 1 "{source}"\n{whole}\n#endif'
    return f'#line 1 "{source}"\n{whole}'


def _include(directive: str) -> str:
    """Return the header that a directive includes; "" if it is another one."""
    match = DIRECTIVE.match(directive)
    name = INCLUDED.match(match[2]) if match and match[1] == "include" else None
    return name[1] if name else ""


def _is_wanted(header: str, words: Iterable[str]) -> bool:
    trigger = next((trigger for name, trigger in DEVICE_HEADERS.items() if re.fullmatch(name, header)), None)
    return trigger is not None and any(re.fullmatch(trigger, word) for word in words)


def _macros(text: str) -> dict[str, set[str]]:
    """Return the words of each macro's definitions."""
    macros: dict[str, set[str]] = {}
    for name, body in re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:\\\n|[^\n])*)", text, re.MULTILINE):
        macros.setdefault(name, set()).update(WORD.findall(body))
    return macros


def _reached(words: set[str], pieces: Sequence[Piece], macros: Mapping[str, set[str]]) -> set[str]:
    """Return ``words`` and all words that are in what they mention, directly or not."""
    waiting = [piece for piece in pieces if piece.is_device]
    before = -1
    while before != len(words):
        before = len(words)
        words |= {word for name in words & macros.keys() for word in macros[name]}
        for piece in waiting:
            if piece.always or piece.names & words:
                words |= piece.words
        waiting = [piece for piece in waiting if not piece.words <= words]
    return words


def _blank(shown: list[str], text: str, start: int, end: int) -> None:
    """Blank a part of the text, but for lines of the preprocessor, which other parts may need."""
    place = start
    for match in TOKEN.finditer(text, start, end):
        directive = DIRECTIVE.match(match["directive"] or "")
        if directive and directive[1] not in ("pragma", "error", "warning", "include"):
            shown[place : match.start()] = re.sub(r"[^\n]", " ", text[place : match.start()])
            place = match.end()
    shown[place:end] = re.sub(r"[^\n]", " ", text[place:end])


def _pieces(text: str, macros: Mapping[str, set[str]]) -> list[Piece]:
    """Cut the text into declarations. What opens or closes an unnamed block (``extern "C" {``) is one that goes."""
    marks = _mentioning(SPACES, macros)  # macros that stand for __device__ or the like, too
    openers = _mentioning({*marks, "void", "struct", "template"}, macros) & macros.keys()  # of a whole declaration
    pieces: list[Piece] = []
    blocks: list[str] = []  # their names; "" without one
    conditions: list[int] = []  # the depth at each #if
    start, body, depth, words = -1, -1, 0, set[str]()
    tokens = list(TOKEN.finditer(text))
    for place, token in enumerate(tokens):
        if token["directive"]:
            match DIRECTIVE.match(token[0]), conditions:
                case re.Match() as directive, _ if directive[1].startswith("if"):
                    conditions.append(depth)
                case re.Match() as directive, [*_, before] if directive[1].startswith("el"):
                    depth = before
                case re.Match() as directive, [*_, _] if directive[1] == "endif":
                    conditions.pop()
            words.update(WORD.findall(token[0]) if start >= 0 else ())
            continue
        if start < 0:
            start, body, words = token.start(), -1, set()
            is_call = token[0] in openers and _sign(tokens, place + 1) == "("
        words.update(filter(None, [token["word"]]))
        sign = token["sign"]
        is_end = sign == ";" and not depth
        if sign == "{" and not depth and (block := BLOCK.fullmatch(text[start : token.start()].strip())):
            blocks.append((block["name"] or "").strip())
            is_end = is_edge = True
        elif sign == "}" and not depth:
            is_end = is_edge = True
        else:
            is_edge = False
            if sign in ("(", "[", "{"):
                body = token.start() if sign == "{" and not depth and body < 0 else body
                depth += 1
            elif sign in (")", "]", "}"):
                depth = max(depth - 1, 0)
                follows = _sign(tokens, place + 1)
                if not depth and follows not in (";", ",", "{", "="):
                    is_end = is_call if sign == ")" else sign == "}" and not _is_type(text[start:body])
        if not is_end:
            continue
        if is_edge:
            if not (blocks[-1] if sign == "{" else blocks.pop() if blocks else "its own"):
                pieces.append(Piece(start, token.end(), frozenset(), frozenset(), is_device=False))
        else:
            end = token.end()
            within = "".join(f"{name}::" for name in blocks if name)
            made = (text, start, end, body if body >= 0 else end, frozenset(words), marks, within)
            pieces.append(_call(*made) if is_call else _declaration(*made))
        start = -1
    return pieces


def _sign(tokens: Sequence[re.Match[str]], place: int) -> str:
    """Return the token at ``place``, or the first after it that is not a directive; "" at the end."""
    return next((token[0] for token in tokens[place:] if not token["directive"]), "")


def _mentioning(words: Iterable[str], macros: Mapping[str, set[str]]) -> set[str]:
    """Return ``words`` and the macros whose definitions mention them, directly or not."""
    found, before = set(words), 0
    while before != len(found):
        before = len(found)
        found |= {name for name, body in macros.items() if body & found}
    return found


def _is_type(head: str) -> bool:
    """Return whether a declaration with a body defines a type."""
    plain = _without_template(ATTRIBUTE.sub(lambda match: " " * len(match[0]), head))[1]
    return TYPE.search(plain) is not None and "(" not in plain


def _without_template(head: str) -> tuple[int, str]:
    """Return the length of all ``template <...>`` before a declaration, and the declaration."""
    place = 0
    while match := TEMPLATE.match(head, place):
        place, depth, parentheses = match.end(), 0, 0
        for place in range(match.end(), len(head)):
            parentheses += {"(": 1, ")": -1}.get(head[place], 0)
            if not parentheses:
                depth += {"<": 1, ">": -1}.get(head[place], 0)
                if not depth:
                    break
        place += 1
    return place, head[place:]


def _call(text: str, start: int, end: int, body: int, words: frozenset[str], marks: set[str], within: str) -> Piece:
    """Return the use of a macro that declares something: which names is not known."""
    is_device = text[start:end].partition("(")[0].strip() in marks
    return Piece(start, end, words, frozenset("*"), is_device, always=is_device, kernel="*" if is_device else "")


def _declaration(
    text: str, start: int, end: int, body: int, words: frozenset[str], marks: set[str], within: str
) -> Piece:
    head = text[start:body]
    skipped, rest = _without_template(ATTRIBUTE.sub(lambda match: " " * len(match[0]), head))
    first, *others = [*WORD.findall(rest), ""]
    in_head = {first, *others}
    is_marked = bool(in_head & marks)
    assigned = re.search(r"(?<![=!<>])=(?!=)", rest)
    before = rest[: assigned.start()] if assigned and "operator" not in in_head else rest
    function = FUNCTION.search(before)
    tail = {*VARIABLE.findall(text[body:end].rpartition("}")[2].rstrip(";"))} if body < end else set()
    always, is_device, unmarked, names = False, True, -1, set[str]()
    if first == "using" and "namespace" in others:
        always = is_device = others[1] in ("std", "nvcuda", "cooperative_groups", "cute", "cutlass", "cuda")
    elif first in ("using", "namespace"):
        names = {(before.strip(" \n;").rpartition("::")[2] if not assigned else others[0]).strip()}
    elif first in ("static_assert", "asm", "template", "extern" if not is_marked else ""):
        is_device = False
    elif ((kind := TYPE.search(before)) and not function) or first == "typedef":
        names = {*POINTER.findall(rest), *tail, *VARIABLE.findall(rest.rstrip(";")), *filter(None, [kind and kind[1]])}
        if kind and kind[0].startswith("enum"):
            names |= {*WORD.findall(text[body:end])}
    elif function:
        names = {*WORD.findall(function[1]), *WORD.findall(function[2])[:1], *POINTER.findall(before)}
        is_device = is_marked or bool(in_head & {"constexpr", "consteval"})
        always = is_marked and "operator" in names
        unmarked = start + skipped + len(rest) - len(rest.lstrip()) if is_device and not is_marked else -1
    else:
        names = {*VARIABLE.findall(rest.rstrip(";"))}
        is_device = is_marked or bool(in_head & {"const", "constexpr", "concept"})
    kernel = f"{within}{function[2]}" if is_marked and function and "__global__" in in_head else ""
    return Piece(start, end, words, frozenset(names), is_device, always, kernel, unmarked)
