"""The layout of the source tree, as rules that can fail.

  L1  Includes follow the arrows: python -> frame_eval, backends -> guards -> ir. backends/ knows
      neither guards/ nor Python, except in backends/callable/.
  L2  ir/ and backends/ (except callable/) build without an interpreter: no Python.h, no pybind11.
  L3  CPython's private headers and version tests stay under frame_eval/cpython/ and guards/cpython/watch.*.
  L4  pybind11 stays in python/ and backends/callable/ (tests may embed an interpreter with it).
  L5  torch's umbrella headers are included nowhere.
  L6  Some names say nothing of a file, and are not used for files.
  L7  Every reason of reasons.def is given by some source file.
  L8  Nothing names the place where it was written: no absolute home paths, no package hosts.
  L9  Every header begins with a comment that says what it is.
  L10 Links between our documents lead somewhere.
  L11 docs/reasons.md is what reasons.def says; `python tests/layout_test.py --accept` writes it.
  L12 No two classes of one namespace have the same name: the linker takes the code of one for the other's.
  L13 No type, callable or module is known by its name, or by the file that it is in. Names make text, and are compared
      with nothing.
  L14 Only backends/onednn/ includes oneDNN's headers, and it includes of ours only itself. Nothing calls the `onednn::`
      operators of torch, which are private to it.
  L15 Inside of ir/, guards/ and frame_eval/, includes follow the arrows between rooms (ROOMS). Files that lie in such a folder
      itself may be included from all of its rooms, and include nothing of them.
  L16 No file includes itself through others.
  L17 Every room has a README that begins with its contract.
  L18 A law has an id of its own: the stem of its file and its name there, as in `recorder/C1`. Other files cite it so, and
      what they cite exists.
  L19 Comments and documents name files that exist.
  L20 docs/effects.md is what effects.def, exits.def and state.def say; `python tests/layout_test.py --accept` writes it.
  L21 A golden shows each reason of reasons.def, except the few that no program can reach.
  L22 No code but the bindings for tests knows which fault is forced (frame_eval/checks/stress.h).
  L23 No module of python/frametap takes text apart by regular expressions: the bindings give the data behind our texts.
  L24 docs/predicates.md is what predicates.def and state.def say; `python tests/layout_test.py --accept` writes it.
  L25 Only the recording and the commit of an effect name its kind. EFFECT_PLACES has the exceptions.
  L26 Opcodes are known by name in frame_eval/cpython/ and frame_eval/interpreter/ alone. Elsewhere are so many names as
      OPCODE_NAMES says, and no more. Others ask for an instruction's role (instruction_roles.h).
  L27 A file of the product, in C++ or Python, has at most 600 lines. No class of frame_eval/record/ and session/ has a
      friend.
  L28 A unit test that has a law's id in its name (`V2_ChangedDefaultIsAMiss`) stands in a file that cites the law in full.
  L30 Outside of ir/ops/, code makes and calls operators by name, and decides nothing by one: the facts of operators are rows
      of ops.def. OP_NAMES has the exceptions.

Each rule is a function from a tree (path -> text) to the list of its violations; the second half of
this file shows each of them a small bad tree.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

import pytest

from fixtures.tree import ROOT, Tree, our_tree

ARROWS = {
    "ir": {"ir"},
    "guards": {"guards", "ir"},
    "backends": {"backends", "ir"},
    "backends/callable": {"backends", "guards", "ir"},
    "frame_eval": {"frame_eval", "guards", "backends", "ir"},
    "python": {"python", "frame_eval", "guards", "backends", "ir"},
}
FOLDERS = {"ir", "guards", "backends", "frame_eval", "python"}
# Which rooms a room may include files of, beside its own. A folder inside of a room belongs to it.
ROOMS = {
    "ir/graph": set(),
    "ir/symbols": {"graph"},
    "ir/ops": {"symbols", "graph"},
    "ir/passes": {"ops", "graph"},
    "ir/segment": {"symbols", "graph"},
    "ir/text": {"segment", "symbols", "ops", "graph"},
    "guards/cpython": set(),
    "guards/objects": {"cpython"},
    "guards/kinds": {"objects", "cpython"},
    "guards/collect": {"kinds", "objects", "cpython"},
    "guards/check": {"collect", "kinds", "objects", "cpython"},
    # The folder of a version fills the interpreter's table of handlers: the one arrow up.
    "frame_eval/cpython": {"interpreter"},
    "frame_eval/interpreter": {"cpython"},
    "frame_eval/state": {"cpython"},
    "frame_eval/segment": {"state", "cpython"},
    "frame_eval/checks": {"segment", "state", "cpython"},
    "frame_eval/record": {"interpreter", "segment", "checks", "state", "cpython"},
    "frame_eval/replay": {"interpreter", "segment", "checks", "state", "cpython"},
    "frame_eval/session": {
        *("record", "replay", "interpreter", "segment", "checks", "state", "cpython"),
    },
}
UMBRELLAS = {"torch/torch.h", "torch/extension.h", "torch/all.h", "ATen/ATen.h"}
EMPTY_NAMES = {
    *("context", "manager", "helper", "helpers", "util", "utils", "info", "data"),
    *("process", "extra", "wrapper", "misc", "common"),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
# Written in pieces, so that this file does not find itself.
WORKPLACE = re.compile(
    r"(?<![\w.])/(?:home|root|work|Users)/\w"
    + "|py"
    + r"pi\.org|files\.python"
    + r"hosted|download\.py"
    + r"torch\.org"
)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def is_cpp(path: str) -> bool:
    return path.endswith((".h", ".cc", ".c", ".def"))


def folder_of(path: str) -> str:
    if path.startswith("backends/callable/"):
        return "backends/callable"
    return path.split("/", 1)[0]


def includes(tree: Tree) -> Iterator[tuple[str, str]]:
    for path, text in tree.items():
        if is_cpp(path):
            for name in INCLUDE.findall(text):
                yield path, name


def knows_no_python(path: str) -> bool:
    return folder_of(path) in {"ir", "backends"}


def l1_arrows(tree: Tree) -> list[str]:
    return [
        f"{path} includes {name}"
        for path, name in includes(tree)
        if folder_of(path) in ARROWS
        and name.split("/", 1)[0] in FOLDERS
        and name.split("/", 1)[0] not in ARROWS[folder_of(path)]
    ]


def room_of(path: str) -> str:
    """The room of a file; "" for one that lies in no room."""
    return room if (room := "/".join(path.split("/")[:2])) in ROOMS else ""


def l15_rooms(tree: Tree) -> list[str]:
    found = []
    for path, name in includes(tree):
        folder = path.split("/", 1)[0]
        there = room_of(name)
        if folder not in {room.split("/")[0] for room in ROOMS} or folder != name.split("/", 1)[0]:
            continue
        here = room_of(path)
        if there not in {"", here} and (
            not here or there.split("/")[1] not in ROOMS[here] or is_way_up(path, there)
        ):
            found.append(f"{path} includes {name}")
    return found


def is_way_up(path: str, there: str) -> bool:
    """Whether a header of the door itself, and not of a version, includes the interpreter's."""
    of_door = re.fullmatch(r"frame_eval/cpython/\w+\.\w+", path)
    return of_door is not None and there == "frame_eval/interpreter"


def l16_circles(tree: Tree) -> list[str]:
    leads_to: dict[str, list[str]] = {}
    for path, name in includes(tree):
        if name in tree:
            leads_to.setdefault(path, []).append(name)
    done: set[str] = set()
    found: list[str] = []

    def visit(path: str, above: list[str]) -> None:
        if path in above:
            found.append(" includes ".join([*above[above.index(path) :], path]))
        elif path not in done:
            for name in leads_to.get(path, []):
                visit(name, [*above, path])
            done.add(path)

    for path in sorted(leads_to):
        visit(path, [])
    return found


def l17_contracts(tree: Tree) -> list[str]:
    rooms = {room for path in tree if is_cpp(path) and (room := room_of(path))}
    contract = re.compile(r"# [^\n]+\n\n[A-Z][^\n]{20,}")
    return [
        f"{room}/README.md does not begin with the room's contract"
        for room in sorted(rooms)
        if not contract.match(tree.get(f"{room}/README.md", ""))
    ]


CITED = re.compile(r"(?<![\w/.-])(\w+)/([A-Z]\d{1,2})(?![\w/]|\.\w)")
CITED_LOOSELY = re.compile(
    r"\b[A-Z]\d{1,2} (?:of|in) (?:\w+/)*\w+\.(?:h|cc|py)\b|\b\w+\.(?:h|cc), [A-Z]\d{1,2}\b"
)


def laws_of(tree: Tree) -> dict[str, list[str]]:
    """The laws by id, with the files that give them: one each."""
    laws: dict[str, list[str]] = {}
    for path, text in tree.items():
        if is_cpp(path):
            names = re.findall(r"^//   ([A-Z]\d{1,2})  \S", text, re.MULTILINE)
        elif path.endswith(".py"):
            docstring = re.match(r'"""(.*?)"""', text, re.DOTALL)
            names = (
                re.findall(r"^(?:  )?([A-Z]\d{1,2})  ?\S", docstring.group(1), re.MULTILINE)
                if docstring
                else []
            )
        else:
            continue
        for name in names:
            laws.setdefault(f"{PurePosixPath(path).stem}/{name}", []).append(path)
    return laws


def l18_laws(tree: Tree) -> list[str]:
    laws = laws_of(tree)
    found = [
        f"{law} is given by {' and '.join(paths)}" for law, paths in laws.items() if len(paths) > 1
    ]
    stems = {PurePosixPath(path).stem for path in tree if is_cpp(path) or path.endswith(".py")}
    for path, text in tree.items():
        if (
            not path.endswith((".h", ".cc", ".c", ".def", ".py", ".md"))
            or path == "tests/layout_test.py"
        ):
            continue
        for stem, name in CITED.findall(text):
            if stem in stems and f"{stem}/{name}" not in laws:
                found.append(f"{path} cites {stem}/{name}, which no file gives")
        found += [
            f"{path} cites '{loose}'; write stem/NAME" for loose in CITED_LOOSELY.findall(text)
        ]
    return found


OUTSIDE = re.compile(
    r"(?:Python|opcode|frameobject|structmember)\.h|(?:internal/)?pycore_\w+\.h|(?:torch|ATen|c10|oneapi)/.*"
)
NAMED = re.compile(r"(?<![\w./<*-])((?:\w+/)*[a-z]\w+\.(?:h|cc|def))\b(?!\()")


def l19_named_files(tree: Tree) -> list[str]:
    ends = {
        "/".join(parts[i:])
        for path in tree
        for parts in [path.split("/")]
        for i in range(len(parts))
    }
    found = []
    for path, text in tree.items():
        if is_cpp(path):
            words = "\n".join(re.findall(r"//(.*)$", text, re.MULTILINE))
        elif path.endswith(".md") and not path.startswith("CHANGELOG"):
            words = text
        else:
            continue
        found += [
            f"{path} names {name}, which is not here"
            for name in NAMED.findall(words)
            if name not in ends and not OUTSIDE.fullmatch(name)
        ]
    return found


LAW_IN_NAME = re.compile(r"\bTEST(?:_F|_P)?\(\s*\w+,\s*([A-Z]\d{1,2})_\w+\)")


def l28_laws_of_tests(tree: Tree) -> list[str]:
    found = []
    for path, text in tree.items():
        if path.startswith("tests/") and is_cpp(path):
            cited = {name for _, name in CITED.findall(text)}
            found += [
                f"{path}: a test names {name}, and no law of that name is cited"
                for name in sorted(set(LAW_IN_NAME.findall(text)) - cited)
            ]
    return found


def effects_page(effects: str, exits: str, state: str) -> str:
    """docs/effects.md, made from the rows of effects.def, exits.def and state.def."""
    words = {"N": "name", "S": "field", "F": "frame"}
    row = re.compile(r'^EFFECT\(\w+, "(\w+)", "(\w+)", "([^"]*)"\)', re.MULTILINE)
    out = [
        "# Effects and exits",
        "",
        "Generated from `ir/segment/effects.def`. The changes of Python objects that a segment makes after its graph. Names and",
        "fields are strings. The [text form](text_form.md) has operands and frames.",
        "",
        "| effect | in a text | meaning |",
        "| --- | --- | --- |",
    ]
    out += [
        f"| `{word}` | `{' '.join([word, *(words.get(part, 'operand') for part in parts)])}` | {meaning} |"
        for word, parts, meaning in row.findall(effects)
    ]
    fields = re.findall(r'^SWITCH\(\w+, "(\w+)"\)', state, re.MULTILINE)
    out += [
        "",
        "## Fields of the state",
        "",
        "Generated from `ir/segment/state.def`: "
        + ", ".join(f"`{field}`" for field in fields)
        + ".",
        "",
        "## Exits",
        "",
        "Generated from `ir/segment/exits.def`.",
        "",
        "| exit | meaning |",
        "| --- | --- |",
    ]
    ends = re.findall(r'^EXIT\(\w+, "(\w+)", "([^"]*)"\)', exits, re.MULTILINE)
    out += [f"| `{word}` | {meaning} |" for word, meaning in ends]
    return "\n".join(out) + "\n"


def tables_of(tree: Tree, *names: str) -> list[str]:
    return [tree.get(f"ir/segment/{name}.def", "") for name in names]


def l20_effects_page(tree: Tree) -> list[str]:
    if tree.get("docs/effects.md") == effects_page(*tables_of(tree, "effects", "exits", "state")):
        return []
    return ["docs/effects.md differs from effects.def, exits.def and state.def"]


def l22_forced_faults(tree: Tree) -> list[str]:
    return [
        f"{path} includes {name}"
        for path, name in includes(tree)
        if name == "frame_eval/checks/stress.h"
        and not path.startswith("python/bindings/")
        and path != "frame_eval/checks/stress.cc"
    ]


MOST_LINES = 600
FRIEND = re.compile(r"^\s*friend (?:class|struct) (\w+);", re.MULTILINE)


def l27_sizes(tree: Tree) -> list[str]:
    product = {
        path: text
        for path, text in tree.items()
        if (is_cpp(path) and folder_of(path).split("/")[0] in FOLDERS)
        or (path.startswith("python/frametap/") and path.endswith(".py"))
    }
    found = [
        f"{path} has {text.count(chr(10))} lines"
        for path, text in product.items()
        if not path.endswith(".def") and text.count("\n") > MOST_LINES
    ]
    return found + [
        f"{path}: {name} is a friend"
        for path, text in product.items()
        if path.startswith(("frame_eval/record/", "frame_eval/session/"))
        for name in FRIEND.findall(text)
    ]


def l2_no_interpreter(tree: Tree) -> list[str]:
    return [
        f"{path} includes {name}"
        for path, name in includes(tree)
        if knows_no_python(path)
        and (
            name in {"Python.h", "frameobject.h"}
            or name.startswith(("pybind11/", "torch/csrc/utils/pybind", "cpython/"))
            or (name.startswith("torch/csrc/") and "python" in name)
        )
    ]


def l3_versions(tree: Tree) -> list[str]:
    private = re.compile(r"\bpycore_\w+|\bPY_VERSION_HEX\b|\bPy_BUILD_CORE\b")
    return [
        f"{path} uses {found.group()}"
        for path, text in tree.items()
        if is_cpp(path)
        and not path.startswith(("frame_eval/cpython/", "guards/cpython/watch."))
        and (found := private.search(text))
    ]


def l4_pybind11(tree: Tree) -> list[str]:
    return [
        f"{path} includes {name}"
        for path, name in includes(tree)
        if name.startswith("pybind11/") or name == "torch/csrc/utils/pybind.h"
        if not path.startswith(("python/", "backends/callable/", "tests/"))
    ]


def l5_umbrellas(tree: Tree) -> list[str]:
    return [f"{path} includes {name}" for path, name in includes(tree) if name in UMBRELLAS]


def l6_names(tree: Tree) -> list[str]:
    return [
        path
        for path in tree
        if path.endswith((".h", ".cc", ".c", ".py"))
        and EMPTY_NAMES & set(PurePosixPath(path).stem.lower().split("_"))
    ]


def l7_reasons(tree: Tree) -> list[str]:
    rows = reason_rows(tree)
    if not rows:
        return ["ir/segment/reasons.def has no rows"]
    sources = "\n".join(
        text
        for path, text in tree.items()
        if path.endswith((".cc", ".h")) and not path.startswith("tests/")
    )
    used = set(re.findall(r"\bReason::(\w+)", sources))
    return [f"no source file gives the reason {row}" for row in rows if row not in used]


# Reasons that no golden can show.
UNSEEN_REASONS = {
    "internal_error": "a bug of ours, which a golden would have to keep",
    "frame_left": "CPython takes a frame over only where a test tracer of the interpreter asks for it",
    "library_code": "the function that a call names is recorded even if it belongs to a library",
}


def reason_rows(tree: Tree) -> list[str]:
    table = tree.get("ir/segment/reasons.def", "")
    return re.findall(r"^(?:BREAK|ONCE|ABORT)\((\w+),", table, re.MULTILINE)


def l21_reasons_in_goldens(tree: Tree) -> list[str]:
    goldens = "\n".join(text for path, text in tree.items() if path.startswith("tests/golden/"))
    shown = set(re.findall(r"^(\w+): |\bbecause (\w+)", goldens, re.MULTILINE))
    seen = {name for pair in shown for name in pair}
    return [
        f"no golden shows the reason {row}"
        for row in reason_rows(tree)
        if row not in seen | UNSEEN_REASONS.keys()
    ]


def l8_workplace(tree: Tree) -> list[str]:
    return [
        f"{path}:{number}: {found.group()}"
        for path, text in tree.items()
        for number, line in enumerate(text.splitlines(), 1)
        if (found := WORKPLACE.search(line))
    ]


def l9_header_comments(tree: Tree) -> list[str]:
    return [
        path
        for path, text in tree.items()
        if path.endswith(".h") and not re.match(r"// \S.{10,}", text)
    ]


def l10_links(tree: Tree) -> list[str]:
    folders = {str(parent) for path in tree for parent in PurePosixPath(path).parents}
    broken = []
    for path, text in tree.items():
        if not path.endswith(".md"):
            continue
        for target in LINK.findall(text):
            if "://" in target:
                continue
            parts: list[str] = []
            for part in [*PurePosixPath(path).parent.parts, *PurePosixPath(target).parts]:
                if part == "..":
                    del parts[-1:]
                else:
                    parts.append(part)
            found = "/".join(parts)
            if found not in tree and found not in folders:
                broken.append(f"{path} links to {target}")
    return broken


def reasons_page(table: str) -> str:
    """docs/reasons.md, made from the rows of reasons.def."""
    row = re.compile(r'^(BREAK|ONCE|ABORT)\((\w+),\s*"([^"]*)",\s*"([^"]*)"\)', re.MULTILINE)
    rows = row.findall(table)
    out = [
        "# Reasons",
        "",
        "Generated from `ir/segment/reasons.def`. `frametap.explain` prints the text after *because*, the",
        "position, and the advice.",
    ]
    for kind, title, what in (
        (
            "BREAK",
            "Breaks",
            "A segment ends; Python runs the instruction, and a new segment may begin.",
        ),
        (
            "ONCE",
            "Breaks at a second time",
            "The first time, the recording is dropped and Python continues the call; after that, a break.",
        ),
        ("ABORT", "Given up", "The recording is dropped; Python continues the call."),
    ):
        out += [
            "",
            f"## {title}",
            "",
            what,
            "",
            "| reason | because | advice |",
            "| --- | --- | --- |",
        ]
        out += [f"| `{name}` | {text} | {advice} |" for k, name, text, advice in rows if k == kind]
    return "\n".join(out) + "\n"


def l11_reasons_page(tree: Tree) -> list[str]:
    if tree.get("docs/reasons.md") == reasons_page(tree.get("ir/segment/reasons.def", "")):
        return []
    return ["docs/reasons.md differs from ir/segment/reasons.def"]


COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
SCOPE = re.compile(
    r"namespace\s*(?P<namespace>[\w:]*)\s*\{"
    r"|(?<!enum )\b(?:struct|class|union)\s+(?P<name>\w+)(?:\s+final)?(?:\s*:(?!:)[^{;()]*)?\s*\{"
    r"|(?P<brace>[{}])"
)


def classes(text: str) -> Iterator[str]:
    """The classes that `text` defines in namespaces with a name."""
    scopes: list[str] = []  # "" is a block, or a namespace without a name
    for found in SCOPE.finditer(COMMENT_OR_TEXT.sub("", text)):
        if found["brace"] == "}":
            del scopes[-1:]
            continue
        if found["name"] and all(scopes):
            yield "::".join([*scopes, found["name"]])
        scopes.append(found["namespace"] or "")


def l12_one_class_a_name(tree: Tree) -> list[str]:
    homes: dict[str, set[str]] = {}
    for path, text in tree.items():
        if is_cpp(path):
            for name in classes(text):
                homes.setdefault(name, set()).add(path)
    return [
        f"{name} is defined in {' and '.join(sorted(paths))}"
        for name, paths in sorted(homes.items())
        if len(paths) > 1
    ]


# Each place that reads a name to do more than print it, with the reason why a pointer cannot do.
def predicates_page(predicates: str, state: str) -> str:
    """docs/predicates.md, made from the rows of predicates.def and state.def."""
    joined = re.sub(r'"\s*\n\s*"', "", predicates)
    forms = re.findall(r'^FORM\(\w+,\s*"([^"]*)",\s*"([^"]*)",\s*"([^"]*)"\)', joined, re.MULTILINE)
    fields = re.findall(r'^STATE\(\w+, "(\w+)", k(\w+), "([^"]*)"\)', state, re.MULTILINE)
    takes = {"Flag": "`on`, `off`", "Dtype": "a dtype", "DtypeOrOff": "a dtype, `off`"}
    out = [
        "# Predicates",
        "",
        "Generated from `ir/segment/predicates.def`. Each row is a condition of a guard, as texts show it and as",
        "`frametap.Guard` has it. A row without a description belongs to the one above.",
        "",
        "| `Guard.kind` | text | the guard holds for |",
        "| --- | --- | --- |",
        *(f"| `{word}` | `{text}` | {meaning} |" for word, text, meaning in forms),
        "",
        "## State of the thread",
        "",
        "Generated from `ir/segment/state.def`. Every segment guards these fields, and the switches of `torch.backends`.",
        "",
        "| field | values | left out of a text |",
        "| --- | --- | --- |",
    ]
    shown = {"": "never", "*": "always"}
    out += [
        f"| `{word}` | {takes[kind]} | {shown.get(usual, f'if it is `{usual}`')} |"
        for word, kind, usual in fields
    ]
    return "\n".join(out) + "\n"


def l24_predicates_page(tree: Tree) -> list[str]:
    page = predicates_page(*tables_of(tree, "predicates", "state"))
    if tree.get("docs/predicates.md") == page:
        return []
    return ["docs/predicates.md differs from ir/segment/predicates.def and state.def"]


REGULAR_EXPRESSION = re.compile(r"^\s*(?:import re\b|from re import|import regex\b)", re.MULTILINE)


def l23_regular_expressions(tree: Tree) -> list[str]:
    return [
        f"{path} imports re"
        for path, text in tree.items()
        if path.startswith("python/frametap/") and REGULAR_EXPRESSION.search(text)
    ]


# The other files that name a kind of effect.
EFFECT_PLACES = {
    "frame_eval/replay/run_graph.cc": "the cache of autocast",
    "frame_eval/replay/reify.cc": "the frame of a generator that runs",
    "frame_eval/replay/cached_entries.cc": "a call that asks a cache",
    "python/bindings/compiled.cc": "the frame of a generator, and the field of a state",
    "ir/text/verify.cc": "the frame of a generator",
}
KIND_OF_EFFECT = re.compile(r"(?<!CommitEffect<)\bEffect::Kind::(k[A-Z]\w*)")


def effect_places(tree: Tree) -> Iterator[tuple[str, str]]:
    for path, text in tree.items():
        if is_cpp(path) and not path.startswith(("tests/", "frame_eval/record/")):
            yield from ((path, kind) for kind in set(KIND_OF_EFFECT.findall(text)))


def l25_effects(tree: Tree) -> list[str]:
    return [
        f"{path} names the effect {kind}"
        for path, kind in effect_places(tree)
        if path not in EFFECT_PLACES
    ]


NAMES_ARE_READ = {
    ("frame_eval/replay/faults.cc", "tp_name"): "text for a message",
    ("frame_eval/record/break_words.cc", "co_filename"): "which line to name in a message",
    ("frame_eval/record/callables/table.cc", "func_qualname"): "text for a message",
    ("frame_eval/record/callables/table.cc", "tp_name"): "text for a message",
    ("frame_eval/record/callables/table.cc", '"__name__"'): "text for a message",
    ("frame_eval/record/callables/table.cc", '"__module__"'): "text for a message",
    ("frame_eval/record/callables/table.cc", '"__qualname__"'): "text for a message",
    ("frame_eval/cpython/3.11/positions.cc", "co_qualname"): "text for a position",
    ("python/bindings/plain_layers.cc", "co_qualname"): "text for a message",
    ("frame_eval/cpython/3.11/positions.cc", "co_filename"): "text for a position",
    (
        "frame_eval/record/finish/describe_instances.cc",
        '"__name__"',
    ): "what MAKE_FUNCTION reads, to repeat it",
    (
        "frame_eval/session/library_code.cc",
        '"__file__"',
    ): "whose code is library code: a policy about files",
    (
        "frame_eval/session/library_code.cc",
        "co_filename",
    ): "whose code is library code: a policy about files",
    (
        "frame_eval/session/library_code.cc",
        "co_name",
    ): "whose code is library code: a policy about files",
    (
        "frame_eval/record/objects/variables.cc",
        '"__name__"',
    ): "where to look in sys.modules; the dict found there decides",
    ("guards/objects/value.cc", "ml_name"): "text for a guard",
    ("guards/objects/value.cc", "tp_name"): "text for a guard",
    ("guards/objects/value.cc", "PyModule_GetName"): "text for a guard",
    (
        "python/frametap/_program.py",
        "__name__",
    ): "a file has no pointers to classes of another process",
    (
        "python/frametap/_compile.py",
        "__qualname__",
    ): "how pickle finds a function again; the object decides",
}
CPP_NAME = re.compile(
    r"\b(?:tp_name|[mg]l?_name|co_filename|co_qualname|co_name|func_qualname|func_name|func_module"
    r"|PyModule_GetName|PyModule_GetFilename)\b"
    r'|"__(?:module|qualname|name|file)__"'
)
CPP_COMPARES = re.compile(
    r"\bstrn?cmp\b|\bstrstr\b|\bstrr?chr\b|starts_with|ends_with|StartsWith|EndsWith|StrContains"
    r"|CompareWithASCII|PyUnicode_Compare|RichCompare|EqualToASCII|SameValue|\.r?find\(|\bcontains\("
    r"|(?:_name|_filename|_qualname|_module)\)*\s*[!=]=|[!=]=\s*[\w.>()*-]*(?:_name|_filename|_qualname|_module)\b"
)
# A name that is kept can be compared in the next statement.
CPP_KEEPS = re.compile(
    r"^\s*(?:static\s+)?(?:const\s+)?(?:char|auto|std::string|std::string_view|PyObject)\b"
    r"[\w:<>*&\s]*\b\w+\s*=[^=]"
)
STATEMENT = re.compile(r"[^;{}]*[;{}]")
PY_NAME = re.compile(r"__(?:name|qualname|module|file)__|\bco_(?:name|filename|qualname)\b")
PY_COMPARES = re.compile(
    r"__\)?\s*(?:[!=]=|in\b|is\b)|(?:[!=]=|\bin\b|\bis(?: not)?)\s+[\w.()]*\.__|startswith|endswith"
    r"|\bco_name\b.*==|\.split\("
)


def names_that_decide(tree: Tree) -> list[tuple[str, str]]:
    found = []
    for path, text in tree.items():
        folder = path.split("/", 1)[0]
        if is_cpp(path) and folder in {"frame_eval", "guards", "backends", "python"}:
            for statement in STATEMENT.findall(re.sub(r"//[^\n]*", "", text)):
                # The name that a message contains is chosen by something else.
                if "PyErr_Format" in statement:
                    continue
                if CPP_COMPARES.search(statement) or CPP_KEEPS.search(statement):
                    found += [(path, name) for name in CPP_NAME.findall(statement)]
        elif path.startswith("python/frametap/") and path.endswith(".py"):
            for line in text.splitlines():
                if PY_COMPARES.search(line) and '__name__ == "__main__"' not in line:
                    found += [(path, name) for name in PY_NAME.findall(line)]
    return list(dict.fromkeys(found))


def l13_names(tree: Tree) -> list[str]:
    return [
        f"{path} reads {name} to decide by it"
        for path, name in names_that_decide(tree)
        if (path, name) not in NAMES_ARE_READ
    ]


# Written in pieces, so that this file does not find itself.
TORCHS_ONEDNN = re.compile(r'"onednn' + r"::|\bops\.one" + r"dnn\b")


def l14_onednn(tree: Tree) -> list[str]:
    own = "backends/onednn/"
    found = [
        f"{path} includes {name}"
        for path, name in includes(tree)
        if (name.startswith("oneapi/dnnl/") and not path.startswith(own))
        or (
            path.startswith(own)
            and name.split("/", 1)[0] in FOLDERS
            and not name.startswith("backends/onednn/")
        )
    ]
    found += [
        f"{path} names an operator of torch's oneDNN"
        for path, text in tree.items()
        if path.endswith((".h", ".cc", ".c", ".py")) and TORCHS_ONEDNN.search(text)
    ]
    return found


# How many names of opcodes each folder has in its texts. Facts of `InstructionInfo` are to replace them.
OPCODE_NAMES = {"python/frametap": 21}  # by dis
OPCODE_ROW = re.compile(r"^[A-Z]+\((\w+)", re.MULTILINE)
UPPER_TEXT = re.compile(r'"([A-Z][A-Z0-9_]+)"')


def l26_opcode_names(tree: Tree) -> list[str]:
    names = {
        name
        for path, text in tree.items()
        if path.endswith("/opcodes.def")
        for name in OPCODE_ROW.findall(text)
    }
    found: dict[str, list[str]] = {}
    for path, text in tree.items():
        is_product = is_cpp(path) or path.startswith("python/frametap/")
        room = "/".join(path.split("/")[:2])
        if not is_product or folder_of(path) not in FOLDERS:
            continue
        if room in {"frame_eval/cpython", "frame_eval/interpreter"}:
            continue
        for word in UPPER_TEXT.findall(text):
            if word in names or (word[-1] == "_" and any(n.startswith(word) for n in names)):
                found.setdefault(room, []).append(f"{path} has the opcode {word}")
    return [
        "; ".join(places)
        for room, places in found.items()
        if len(places) > OPCODE_NAMES.get(room, 0)
    ]


# Without memory for the look-up, each of these says that there is nothing, and raises nothing.
LOSES_ERRORS = re.compile(
    r"\b(?:PyDict_GetItem|PyDict_GetItemString|PyObject_HasAttr|PyObject_HasAttrString|PyMapping_HasKey"
    r"|PyMapping_HasKeyString)\("
)


def l29_look_ups_lose_no_error(tree: Tree) -> list[str]:
    return [
        f"{path} calls {call[:-1]}: see guards/throw_if_null.h"
        for path, text in tree.items()
        if is_cpp(path) and folder_of(path) in FOLDERS
        for call in LOSES_ERRORS.findall(text)
    ]


# Where a name of an operator decides, or names stand in a list, and why.
OP_NAMES = {
    "backends/freeze/": "rewrites patterns of ops, by the families of backends/quant/op_table.cc",
    "backends/quant/": "rewrites patterns of ops, and has a table of its own for them",
    "frame_eval/record/callables/": "functions of Python that have the names of operators",
    "frame_eval/record/numbers/numbers.cc": "the node of each comparison of Python",
    "frame_eval/record/numbers/numbers_in_tensors.cc": "the ops that a list as an index makes",
    "frame_eval/record/numbers/symbolic_args.cc": "the ops that an index or a reflected operator makes",
}
OP_ROW = re.compile(r"^OP\((\w+)", re.MULTILINE)
OP_NAME = re.compile(r'(\w+\(\s*)?(?<!`)"aten(?:::|\.)\w[\w.]*"')
MAKES_OP = re.compile(r"(?:AddOpNode|findSchemaOrThrow|FindOperator)\(\s*$")
LIST_OF_TEXTS = re.compile(r'[{(\[]\s*((?:"[\w.:]+",\s*)+"[\w.:]+",?)\s*[})\]]')
CALLS_BASE_NAME = re.compile(r"\bBaseName\((?!const )")
BARE_NAME = re.compile(r'"(?:aten(?:::|\.))?([\w.:]+?)(?:\.\w+)?"')


def l30_op_names(tree: Tree) -> list[str]:
    names = set(OP_ROW.findall(tree.get("ir/ops/ops.def", "")))
    found = []
    for path, text in tree.items():
        is_product = path.endswith((".h", ".cc", ".py")) and folder_of(path) in ARROWS
        if not is_product or path.startswith(("ir/ops/", *OP_NAMES)):
            continue
        code = re.sub(r"//.*", "", text) if is_cpp(path) else text
        decides = [m for m in OP_NAME.finditer(code) if not MAKES_OP.match(m[1] or "")]
        lists = [BARE_NAME.findall(words) for words in LIST_OF_TEXTS.findall(code)]
        if decides or CALLS_BASE_NAME.search(code) or any(set(of) <= names for of in lists):
            found.append(f"{path} decides by the name of an operator: see ir/ops/ops.def")
    return found


Rule = Callable[[Tree], list[str]]
RULES: list[Rule] = [
    l1_arrows,
    l2_no_interpreter,
    l3_versions,
    l4_pybind11,
    l5_umbrellas,
    l6_names,
    l7_reasons,
    l8_workplace,
    l9_header_comments,
    l10_links,
    l11_reasons_page,
    l12_one_class_a_name,
    l13_names,
    l14_onednn,
    l15_rooms,
    l16_circles,
    l17_contracts,
    l18_laws,
    l19_named_files,
    l20_effects_page,
    l21_reasons_in_goldens,
    l22_forced_faults,
    l23_regular_expressions,
    l24_predicates_page,
    l25_effects,
    l26_opcode_names,
    l27_sizes,
    l28_laws_of_tests,
    l29_look_ups_lose_no_error,
    l30_op_names,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree_follows(rule: Rule) -> None:
    assert rule(our_tree()) == []


OP_ROWS = "OP(add, kPlain)\nOP(sub, kPlain)\n"
REASONS = 'BREAK(branch, "a branch", "advice")\nABORT(fault, "a fault", "advice")\n'
OPCODES = "MAP(IS_OP, IsOp, arg)\nDATA(CACHE)\n"
BAD: list[tuple[Rule, Tree]] = [
    (
        l26_opcode_names,
        {
            "frame_eval/cpython/3.11/opcodes.def": OPCODES,
            "guards/a.cc": 'return std::strcmp(name, "IS_OP") == 0;\n',
        },
    ),
    (
        l26_opcode_names,
        {
            "frame_eval/cpython/3.11/opcodes.def": OPCODES,
            "frame_eval/record/a.cc": 'name == "IS_OP";\n',
        },
    ),
    (l1_arrows, {"ir/a.cc": '#include "guards/ref.h"\n'}),
    (l1_arrows, {"guards/a.cc": '#include "frame_eval/interpreter/hook.h"\n'}),
    (l1_arrows, {"guards/a.cc": '#include "backends/backend.h"\n'}),
    (l1_arrows, {"backends/native/a.cc": '#include "guards/ref.h"\n'}),
    (l1_arrows, {"backends/callable/a.cc": '#include "frame_eval/interpreter/hook.h"\n'}),
    (l1_arrows, {"frame_eval/a.cc": '# include "python/bindings/bindings.h"\n'}),
    (l15_rooms, {"ir/graph/a.cc": '#include "ir/text/text.h"\n'}),
    (l15_rooms, {"guards/ref.h": '#include "guards/objects/must.h"\n'}),
    (l15_rooms, {"frame_eval/record/numbers/a.cc": '#include "frame_eval/replay/reify.h"\n'}),
    (l15_rooms, {"frame_eval/replay/a.h": '#include "frame_eval/session/session.h"\n'}),
    (l15_rooms, {"frame_eval/cpython/a.h": '#include "frame_eval/interpreter/tracer.h"\n'}),
    (l16_circles, {"ir/a.h": '#include "ir/b.h"\n', "ir/b.h": '#include "ir/a.h"\n'}),
    (l18_laws, {"ir/a.h": "// A: a.\n//   A1  It is so.\n", "b/a.cc": "//   A1  Likewise.\n"}),
    (l18_laws, {"ir/a.h": "// A: a.\n//   A1  It is so.\n", "ir/b.cc": "// a/A2 holds.\n"}),
    (l18_laws, {"ir/a.h": "// A: a.\n//   A1  It is so.\n", "ir/b.cc": "// A1 of a.h holds.\n"}),
    (l19_named_files, {"ir/a.h": "// As old_name.h says.\n"}),
    (l19_named_files, {"docs/a.md": "See `ir/old_name.cc`.\n"}),
    (l20_effects_page, {"ir/segment/effects.def": 'EFFECT(kNew, "new", "T", "is new")\n'}),
    (l28_laws_of_tests, {"tests/unit/ir_a_test.cc": "// a/A2\nTEST(A, A1_ItIsSo) {\n"}),
    (l18_laws, {"ir/a.h": "// A: a.\n", "ir/b.cc": "// a/A2 holds.\n"}),
    (l22_forced_faults, {"frame_eval/replay/a.cc": '#include "frame_eval/checks/stress.h"\n'}),
    (l27_sizes, {"ir/a.cc": "\n" * 601}),
    (l27_sizes, {"python/frametap/a.py": "\n" * 601}),
    (l27_sizes, {"frame_eval/record/a.h": "class A {\n  friend class B;\n};\n"}),
    (l17_contracts, {"ir/text/a.h": "", "ir/text/README.md": "# text\n"}),
    (l2_no_interpreter, {"ir/a.cc": "#include <Python.h>\n"}),
    (l2_no_interpreter, {"backends/quant/a.h": "  #include <pybind11/pybind11.h>\n"}),
    (l2_no_interpreter, {"backends/a.h": "#include <torch/csrc/autograd/python_variable.h>\n"}),
    (l3_versions, {"frame_eval/a.cc": '#include "internal/pycore_frame.h"\n'}),
    (l3_versions, {"guards/a.cc": "#if PY_VERSION_HEX >= 0x030C0000\n"}),
    (l4_pybind11, {"frame_eval/a.cc": "#include <pybind11/pybind11.h>\n"}),
    (l4_pybind11, {"guards/a.cc": "#include <torch/csrc/utils/pybind.h>\n"}),
    (l5_umbrellas, {"tests/unit/a_test.cc": "#include <torch/torch.h>\n"}),
    (l5_umbrellas, {"ir/a.cc": "#include <ATen/ATen.h>\n"}),
    (l6_names, {"ir/graph_utils.cc": ""}),
    (l6_names, {"python/frametap/helper.py": ""}),
    (l7_reasons, {"ir/segment/reasons.def": REASONS, "frame_eval/a.cc": "Reason::branch"}),
    (
        l7_reasons,
        {
            "ir/segment/reasons.def": REASONS,
            "ir/a.cc": "Reason::fault",
            "tests/a.cc": "Reason::branch",
        },
    ),
    (l7_reasons, {}),
    (l8_workplace, {"a.md": "see /" + "home/someone/notes\n"}),
    (l8_workplace, {"tools/a.py": 'open("/' + 'root/x")\n'}),
    (l8_workplace, {"a.md": "pip install -i https://py" + "pi.org/simple torch\n"}),
    (l9_header_comments, {"ir/a.h": "#pragma once\n"}),
    (l9_header_comments, {"ir/a.h": "// a.h\n"}),
    (l10_links, {"docs/a.md": "[graph](../ir/graph.h)\n"}),
    (
        l11_reasons_page,
        {"ir/segment/reasons.def": REASONS, "docs/reasons.md": "# Reasons\n"},
    ),
    (
        l12_one_class_a_name,
        {
            "ir/a.h": "namespace frametap {\nstruct Step { int a; };\n}\n",
            "backends/b.cc": "namespace frametap {\nvoid F() {}\nclass Step final : public B {};\n}",
        },
    ),
    (
        l13_names,
        {
            "guards/a.cc": 'bool IsSize(PyTypeObject* t) {\n  return std::strcmp(t->tp_name, "torch.Size") == 0;\n}\n'
        },
    ),
    (l13_names, {"frame_eval/a.cc": "void F() {\n  const char* name = type->tp_name;\n}\n"}),
    (
        l13_names,
        {
            "frame_eval/a.cc": 'if (PyUnicode_CompareWithASCIIString(code->co_filename, "x") == 0) {}\n'
        },
    ),
    (l13_names, {"frame_eval/a.cc": 'static PyObject* const key = InternedName("__module__");\n'}),
    (l13_names, {"python/frametap/a.py": 'if type(value).__name__ == "Tensor":\n'}),
    (l13_names, {"python/frametap/a.py": 'if f.__module__ in ("torch", "abc"):\n'}),
    (l14_onednn, {"backends/quant/a.cc": '#include "oneapi/dnnl/dnnl.h"\n'}),
    (l14_onednn, {"backends/onednn/a.cc": '#include "backends/quant/params.h"\n'}),
    (l14_onednn, {"backends/quant/a.cc": 'Find("onednn' + '::qlinear_pointwise");\n'}),
    (
        l21_reasons_in_goldens,
        {"ir/segment/reasons.def": REASONS, "tests/golden/a.txt": "because branch\n"},
    ),
    (
        l21_reasons_in_goldens,
        {
            "ir/segment/reasons.def": REASONS,
            "tests/golden/a.txt": "because branch\n",
            "tests/a.py": "fault: \n",
        },
    ),
    (l23_regular_expressions, {"python/frametap/_a.py": "import ast\nimport re\n"}),
    (l24_predicates_page, {"ir/segment/predicates.def": 'FORM(kToy, "toy", "a toy", "a toy")\n'}),
    (l25_effects, {"frame_eval/session/a.cc": "if (effect.kind == Effect::Kind::kToy) return;\n"}),
    (
        l29_look_ups_lose_no_error,
        {"guards/a.cc": "return PyDict_GetItemString(dict, name) != nullptr;\n"},
    ),
    (l30_op_names, {"ir/passes/a.cc": 'if (name == "aten::linear") return false;\n'}),
    (l30_op_names, {"frame_eval/a.cc": 'return BaseName(*node.op) == "add";\n'}),
    (
        l30_op_names,
        {"python/frametap/a.py": '_OVERLOADS = {"aten.rsub.Scalar": "aten.rsub.Tensor"}\n'},
    ),
    (
        l30_op_names,
        {"ir/ops/ops.def": OP_ROWS, "frame_eval/a.cc": 'kNames[] = {"add",\n            "sub"};\n'},
    ),
]
GOOD: list[tuple[Rule, Tree]] = [
    (
        l26_opcode_names,
        {
            "frame_eval/cpython/3.11/opcodes.def": OPCODES,
            "frame_eval/cpython/a.cc": 'Is(row, "IS_OP");\n',
            "guards/a.cc": 'Log("IS_OPEN");\n',
        },
    ),
    (
        l1_arrows,
        {
            "python/a.cc": '#include "frame_eval/interpreter/hook.h"\n#include "absl/status/status.h"\n'
        },
    ),
    (l1_arrows, {"backends/callable/a.cc": '#include "guards/objects/torch_tensor.h"\n'}),
    (l2_no_interpreter, {"backends/callable/a.cc": "#include <Python.h>\n"}),
    (l3_versions, {"frame_eval/cpython/3.11/a.cc": '#include "internal/pycore_frame.h"\n'}),
    (l4_pybind11, {"python/bindings/a.cc": "#include <pybind11/pybind11.h>\n"}),
    (l5_umbrellas, {"ir/a.cc": "#include <ATen/core/Tensor.h>\n// not torch/torch.h\n"}),
    (l6_names, {"frame_eval/interpreter/interpreter.h": "", "docs/data.md": ""}),
    (
        l7_reasons,
        {
            "ir/segment/reasons.def": REASONS,
            "frame_eval/a.cc": "Reason::branch, Reason::fault",
        },
    ),
    (l27_sizes, {"python/frametap/a.py": "\n" * 600, "tests/python/a.py": "\n" * 601}),
    (l8_workplace, {"tools/dev": 'cd "$root/work/x" && ls ./home/a /usr/bin\n'}),
    (l9_header_comments, {"ir/a.h": "// Graph: SSA over operators.\n#pragma once\n"}),
    (
        l10_links,
        {"docs/a.md": "[graph](../ir/graph/graph.h#L1) [ir](../ir)\n", "ir/graph/graph.h": ""},
    ),
    (
        l11_reasons_page,
        {"ir/segment/reasons.def": REASONS, "docs/reasons.md": reasons_page(REASONS)},
    ),
    (
        l12_one_class_a_name,
        {
            "ir/a.h": "namespace frametap {\nstruct Step { struct In {}; };  // struct Plan {\n}\n",
            "ir/b.cc": "namespace frametap {\nnamespace {\nstruct Step {};\n}\nstruct Step::In {};\n"
            "class Step;\nstruct Plan {};\n}\n",
            "ir/c.h": "namespace frametap::quant {\nstruct Step { int n = 0; };\n}\n",
        },
    ),
    (
        l13_names,
        {
            "frame_eval/a.cc": 'throw Break{Reason::x, std::string("an object of type ") + type->tp_name};\n'
            'PyErr_Format(PyExc_TypeError, "%s%s", t->tp_name, n == 1 ? "" : "s");\n',
            "python/frametap/a.py": 'raise TypeError(f"{type(f).__name__} is not a function")\n'
            'if __name__ == "__main__":\n',
        },
    ),
    (
        l14_onednn,
        {
            "backends/onednn/a.cc": '#include "oneapi/dnnl/dnnl.h"\n#include "backends/onednn/api.h"\n',
            "backends/quant/a.cc": '#include "backends/onednn/library.h"\nonednn' + "::Load();\n",
        },
    ),
    (
        l30_op_names,
        {
            "ir/ops/ops.def": OP_ROWS,
            "ir/ops/a.cc": 'if (op.name != "aten::linear") return false;\n',
            "frame_eval/a.cc": 'aten.AddOpNode("aten::add", "", {});  // for "aten::sub"\n'
            'constexpr const char* kHooks[] = {"add", "no_op"};\n',
            "frame_eval/record/callables/a.cc": 'AddRows("operator", "", Conduct::kPure, {"add", "sub"});\n',
        },
    ),
    (
        l21_reasons_in_goldens,
        {
            "ir/segment/reasons.def": REASONS,
            "tests/golden/a.txt": "resume f:1 because branch\nfault: given up\n",
        },
    ),
]


@pytest.mark.parametrize(("rule", "tree"), BAD)
def test_rule_finds(rule: Rule, tree: Tree) -> None:
    assert len(rule(tree)) == 1


@pytest.mark.parametrize(("rule", "tree"), GOOD)
def test_rule_accepts(rule: Rule, tree: Tree) -> None:
    assert rule(tree) == []


def test_reasons_without_a_golden_are_rows() -> None:
    assert set(reason_rows(our_tree())) >= UNSEEN_REASONS.keys()


# The files of the product that a new kind of guard and a new effect touch, with the part of tests/toy that goes there.
TOY_GUARD = {
    "ir/segment/predicates.def": "tests/toy/predicates.def",
    "guards/kinds/bits.cc": "tests/toy/guard.cc",
}
TOY_GUARD_WITH_PARAMETER = {
    "ir/segment/predicates.def": "tests/toy/predicates_with_parameter.def",
    "guards/kinds/bit.cc": "tests/toy/guard_with_parameter.cc",
}
TOY_EFFECT = {
    "ir/segment/effects.def": "tests/toy/effects.def",
    "frame_eval/replay/append.cc": "tests/toy/effect.cc",
}


def with_toy(toy: dict[str, str]) -> Tree:
    tree = our_tree()
    return tree | {path: tree.get(path, "") + tree[part] for path, part in toy.items()}


def with_pages(tree: Tree) -> Tree:
    return tree | {
        "docs/predicates.md": predicates_page(*tables_of(tree, "predicates", "state")),
        "docs/effects.md": effects_page(*tables_of(tree, "effects", "exits", "state")),
    }


# Rules that take seconds, and that files of a few lines cannot break.
SLOW_RULES = {l12_one_class_a_name, l13_names, l16_circles, l18_laws, l19_named_files}


TOYS = {"guard": TOY_GUARD, "parameter": TOY_GUARD_WITH_PARAMETER, "effect": TOY_EFFECT}


@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
def test_a_new_kind_touches_two_files(toy: dict[str, str]) -> None:
    """The unit tests of tests/toy compile and run these files. Here no rule asks for another one.

    The pages of docs/ are generated.
    """
    tree = with_pages(with_toy(toy))
    quick = [rule for rule in RULES if rule not in SLOW_RULES]
    assert [violation for rule in quick for violation in rule(tree)] == []
    assert len(toy) == 2


def test_the_unit_tests_of_the_toys_add_nothing_else() -> None:
    added = {path for path in our_tree() if path.startswith("tests/toy/")}
    parts = {part for toy in TOYS.values() for part in toy.values()}
    assert added - parts == {"tests/toy/README.md", "tests/toy/toy_rows_test.cc"}
    assert len(l24_predicates_page(with_toy(TOY_GUARD))) == 1
    assert len(l20_effects_page(with_toy(TOY_EFFECT))) == 1
    elsewhere = our_tree() | {"frame_eval/session/session.cc": "Effect::Kind::kAppend\n"}
    assert len(l25_effects(elsewhere)) == 1


def test_effects_are_named_where_the_list_says() -> None:
    assert {path for path, _ in effect_places(our_tree())} == EFFECT_PLACES.keys()


def test_names_that_are_read_are_still_read() -> None:
    assert NAMES_ARE_READ.keys() - set(names_that_decide(our_tree())) == set()


def test_every_rule_has_a_bad_tree() -> None:
    assert {rule for rule, _ in BAD} == set(RULES)


if __name__ == "__main__":
    if sys.argv[1:] != ["--accept"]:
        sys.exit("usage: python tests/layout_test.py --accept")
    tree = our_tree()
    pages = with_pages(tree) | {"docs/reasons.md": reasons_page(*tables_of(tree, "reasons"))}
    for page in ("docs/reasons.md", "docs/predicates.md", "docs/effects.md"):
        (ROOT / page).write_text(pages[page])
