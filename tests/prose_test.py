"""The English of documents, comments and messages, as rules that can fail. CONTRIBUTING.md explains them.

  H1   A sentence begins with its subject, never with a fragment such as "Of a tensor:".
  H2   A noun phrase names the thing; it does not begin with "what".
  H3   A negation stands at the verb: "is not a dtype", never "is no dtype".
  H4   Data and compilers do not tell, hear, meet or ask.
  H5   Some words mean something else to a native reader: behind (after), goes on (continues), anew (again), but for
       (except), dear (expensive).
  H6   A sentence is not inverted ("So has a capture been made").
  H7   The glossary has each term once, in one line.
  H8   A sentence has 30 words at most (25 is the aim), one colon, one semicolon, and no bracket inside of a bracket.
  H9   The noun is repeated: no "that of", no "those of".
  H10  A result is a sentence: "Returns false if ...", never "False: ...".
  H11  A file that a document or comment names exists.

What a rule reads: Markdown without code, comments and docstrings, reasons.def, and text literals of three words or more
outside of tests. A violation in a new place fails. Old ones are counted in TO_DO below, and the counts may only go down:
`python tests/prose_test.py --accept` lowers them, `python tests/prose_test.py H3 guards` lists what a row counts.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

from fixtures.tree import ROOT, Tree, our_tree


class Passage(NamedTuple):
    """A run of prose: a paragraph, a list item, a table cell, a comment, a docstring or a message."""

    path: str
    line: int
    text: str
    kind: str  # document, comment, message


Rule = Callable[[Passage], list[str]]

# --- from files to passages ------------------------------------------------------------------------------------------

FENCE = re.compile(r"^ *```.*?^ *```[^\n]*$", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"^(?:[-*] |\d+\. |#+ |> |\|)")
CPP_TOKEN = re.compile(
    r'R"(?P<tag>\w*)\(.*?\)(?P=tag)"|"(?P<text>(?:\\.|[^"\\\n])*)"|\'(?:\\.|[^\'\\\n])+\'|//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/',
    re.DOTALL,
)
NOT_PROSE = re.compile(
    r"NOLINT|clang-format|^-+$|^=+$|SPDX|noqa|type: ignore|fmt: (?:off|on)|^ruff"
)


def joined(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip())


def paragraphs(path: str, first: int, lines: list[str], kind: str) -> Iterator[Passage]:
    """Splits lines at empty ones, list items, headings and table rows."""
    start, open_lines = first, []
    for number, line in enumerate(lines, first):
        stripped = line.strip()
        if open_lines and (not stripped or ITEM.match(stripped) or is_law(stripped)):
            yield Passage(path, start, joined(open_lines), kind)
            open_lines = []
        if not stripped or NOT_PROSE.search(stripped):
            continue
        if stripped.startswith("|"):
            for cell in stripped.strip("|").split("|"):
                if not re.fullmatch(r"[\s:-]*", cell):
                    yield Passage(path, number, cell.strip(), kind)
            continue
        if not open_lines:
            start = number
        open_lines.append(re.sub(r"^(?:[-*] |\d+\. |#+ |> )", "", stripped))
        if stripped.startswith("#"):
            yield Passage(path, start, joined(open_lines), kind)
            open_lines = []
    if open_lines:
        yield Passage(path, start, joined(open_lines), kind)


def is_law(line: str) -> bool:
    return re.match(r"[A-Z]{1,2}\d+[a-z]? ", line) is not None


def document(path: str, text: str) -> Iterator[Passage]:
    blank = FENCE.sub(lambda found: "\n" * found.group().count("\n"), text)
    yield from paragraphs(path, 1, blank.splitlines(), "document")


def cpp(path: str, text: str) -> Iterator[Passage]:
    comment: list[str] = []
    first = last = 0
    line = 1
    at = 0
    for found in CPP_TOKEN.finditer(text):
        line += text.count("\n", at, found.start())
        at = found.start()
        alone = not text[text.rfind("\n", 0, at) + 1 : at].strip()
        if found["line"] is not None:
            if comment and (line != last + 1 or not alone):
                yield from paragraphs(path, first, comment, "comment")
                comment = []
            if not comment:
                first = line
            comment.append(found["line"].lstrip("/"))
            last = line
            continue
        if found["block"] is not None:
            yield from paragraphs(path, line, found["block"].splitlines(), "comment")
        elif found["text"] is not None and is_message(found["text"]):
            yield Passage(path, line, found["text"].replace("\\n", " "), "message")
    if comment:
        yield from paragraphs(path, first, comment, "comment")


def python(path: str, text: str) -> Iterator[Passage]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
                continue
            if isinstance(first.value.value, str):
                docstrings.add(first.value)
                lines = first.value.value.split("\nPrints:\n")[0].splitlines()  # not the output
                yield from paragraphs(path, first.lineno, lines, "comment")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if node not in docstrings and is_message(node.value):
            yield Passage(path, node.lineno, joined(node.value.splitlines()), "message")
    comment: list[str] = []
    first_line = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        alone = not token.line[: token.start[1]].strip()
        if comment and (token.start[0] != last + 1 or not alone):
            yield from paragraphs(path, first_line, comment, "comment")
            comment = []
        if not comment:
            first_line = token.start[0]
        comment.append(token.string.lstrip("#"))
        last = token.start[0]
    if comment:
        yield from paragraphs(path, first_line, comment, "comment")


def is_message(text: str) -> bool:
    if re.search(r"^(?:import|from|def|class) ", text, re.MULTILINE):
        return False  # a program
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= 3 and " " in text.strip()


def passages(tree: Tree) -> Iterator[Passage]:
    for path, text in tree.items():
        if path in {"docs/reasons.md", "LICENSE"}:
            continue  # generated; not ours
        in_tests = path.startswith("tests/")
        if path.endswith(".md"):
            found: Iterator[Passage] = document(path, text)
        elif path.endswith((".h", ".cc", ".def")):
            found = cpp(path, text)
        elif path.endswith(".py") and path != "tests/prose_test.py":
            found = python(path, text)
        else:
            continue
        yield from (p for p in found if not (in_tests and p.kind == "message"))


@cache
def sentences(text: str) -> tuple[str, ...]:
    """The sentences of a passage, with code shortened to one word and links to their text."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "`c`", text)
    text = re.sub(r"\*\*([^*]*)\*\*", r"\1", text)
    text = re.sub(r"\b(?:e\.g|i\.e|etc|cf|vs)\.", "for example", text)
    parts = re.split(r"(?<=[.!?])[)\"']?\s+(?=[A-Z`\"'(])", text)
    return tuple(part.strip() for part in parts if part.strip())


# --- the rules -------------------------------------------------------------------------------------------------------


def matches(pattern: str) -> Rule:
    compiled = re.compile(pattern)

    def rule(passage: Passage) -> list[str]:
        return [s for s in sentences(passage.text) if compiled.search(s)]

    return rule


h1_subject_first = matches(r"^(?:[A-Z]{1,2}\d+[a-z]? +)?Of (?!course\b|these\b|those\b)")


def h2_named_things(passage: Passage) -> list[str]:
    return [
        s
        for s in sentences(passage.text)
        if (re.match(r"(?:[A-Z]{1,2}\d+[a-z]? +)?(?:What|That which) ", s) and not s.endswith("?"))
        or re.search(r"\b(?:of|for|from|with|in|by|behind|after|before) what\b", s)
    ]


h3_negation_at_verb = matches(
    r"(?<!here )\b(?:is|was|be) no (?!longer\b|more\b|less\b|other\b)|(?<!here )\b(?:is|are|was) none\b|\b[Nn]obody\b"
)
ACTORS = (
    "compilers?|backends?|recorders?|traces?|guards?|graphs?|segments?|nodes?|ops?|interpreter|code"
)
h4_no_people_verbs = matches(
    rf"\b(?:tells?|told|hears?|heard|meets)\b|\b(?:{ACTORS}) (?:says?|said|asks?|met)\b"
)
h5_false_friends = matches(
    r"\bbehind (?:it|the|a|an|them|that|which)\b|\b(?:go|goes|went|going) on\b|\banew\b|\bbut for\b|\bdear(?:er|est)?\b"
)
h6_straight_order = matches(
    r"^(?:So|Nor|Neither) (?:is|are|was|were|has|have|does|do|did|can|may|had)\b"
)


def h8_short_sentences(passage: Passage) -> list[str]:
    if re.search(r"\S {3,}\S", passage.text):
        return []  # columns
    return [
        s
        for s in sentences(passage.text)
        if len(re.findall(r"[\w`'-]*[A-Za-z`][\w`'.-]*", s)) > 30
        or len(re.findall(r":(?= )", re.sub(r'"[^"]*"', '"c"', s))) > 1
        or s.count(";") > 1
        or re.search(r"\([^()]*\([^()]* [^()]*\)", s)
    ]


h9_repeated_noun = matches(r"\b(?:that|those) of\b")
h10_whole_results = matches(
    r"^(?:Null|False|True|None|Empty|Nothing|nullptr|nullopt|Zero|-?\d+)(?:, [^.:]{0,30}| if [^.:]{0,30})?: "
)

RULES: dict[str, Rule] = {
    "H1": h1_subject_first,
    "H2": h2_named_things,
    "H3": h3_negation_at_verb,
    "H4": h4_no_people_verbs,
    "H5": h5_false_friends,
    "H6": h6_straight_order,
    "H8": h8_short_sentences,
    "H9": h9_repeated_noun,
    "H10": h10_whole_results,
}


def h7_glossary(text: str) -> list[str]:
    """Terms that stand twice or out of order, and rows that are not `| term | meaning |` in one line."""
    rows = re.findall(r"^\| (?!term\b|---)(.*)$", text, re.MULTILINE)
    terms = [t.strip() for row in rows for t in row.split("|")[0].split(",")]
    firsts = [row.split("|")[0].strip().lower() for row in rows]
    wrong = [f"{term} stands twice" for term, count in Counter(terms).items() if count > 1]
    wrong += [f"{b} stands after {a}" for a, b in pairwise(firsts) if b < a]
    wrong += [row for row in rows if len(row.rstrip(" |").split("|")) != 2]
    return wrong if rows else ["the glossary has no rows"]


# A name with a known ending, perhaps with folders before it. Not part of a longer word, an address or a pattern.
FILE = re.compile(
    r"(?<![\w/.*<>{}$~-])((?:[\w.-]+/)*[\w-]+\.(?:h|cc|py|md|def|cmake|toml|txt|cpp|pyi))(?![\w*(]|\.\w)"
)
# Files of CPython, torch and the C library; names that stand for any file.
NOT_OURS = re.compile(
    r"^(?:torch|c10|aten|ATen|Python|Lib|Objects|Include|internal|build|cpython)/|^pycore_|^Python\.h$|^(?:frameobject|opcode)\.h$"
    r"|^ceval\.c|^(?:model|train|script|example|step)\.py$|\b(?:FILE|NAME|N|3\.x)\b"
)


def h11_files_exist(tree: Tree) -> list[str]:
    stems = {PurePosixPath(path).name for path in tree}
    tails = {
        "/".join(PurePosixPath(path).parts[i:]) for path in tree for i in range(path.count("/") + 1)
    }
    missing = []
    for passage in passages(tree):
        if passage.kind == "message" or passage.path == "CHANGELOG.md":
            continue
        for name in FILE.findall(passage.text):
            name = re.sub(r"^(?:\.\.?/)+", "", name)
            known = name in tails if "/" in name else name in stems
            if not known and not NOT_OURS.search(name):
                missing.append(f"{passage.path}:{passage.line}: {name}")
    return missing


# --- this tree -------------------------------------------------------------------------------------------------------

# Rules that old text breaks: how often, by rule and folder. A count only goes down; a pair that is not listed is clean.
TO_DO: dict[tuple[str, str], int] = {
    ("H1", "frame_eval"): 2,
    ("H2", "frame_eval"): 5,
    ("H3", "frame_eval"): 3,
    ("H5", "frame_eval"): 4,
    ("H8", "frame_eval"): 25,
    ("H9", "frame_eval"): 4,
}


def folder_of(path: str) -> str:
    if path == "CHANGELOG.md":
        return "changelog"
    if path.endswith(".md"):
        return "documents"
    return path.split("/", 1)[0] if "/" in path else "."


def violations(tree: Tree) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for passage in passages(tree):
        for name, rule in RULES.items():
            for sentence in rule(passage):
                place = f"{passage.path}:{passage.line}: {sentence}"
                found.setdefault((name, folder_of(passage.path)), []).append(place)
    return found


@cache
def our_violations() -> dict[tuple[str, str], list[str]]:
    return violations(our_tree())


def test_tree_keeps_the_rules() -> None:
    found = our_violations()
    worse = [
        f"{rule} in {folder}: {len(places)}, {TO_DO.get((rule, folder), 0)} allowed; "
        f"`python tests/prose_test.py {rule} {folder}` lists them"
        for (rule, folder), places in sorted(found.items())
        if len(places) > TO_DO.get((rule, folder), 0)
    ]
    assert worse == []


def test_counts_only_go_down() -> None:
    found = our_violations()
    stale = [key for key, count in TO_DO.items() if len(found.get(key, [])) < count]
    assert stale == [], "python tests/prose_test.py --accept"


def test_files_that_are_named_exist() -> None:
    assert h11_files_exist(our_tree()) == []


def test_glossary() -> None:
    assert h7_glossary((ROOT / "docs" / "glossary.md").read_text()) == []


def test_it_reads_the_tree() -> None:
    kinds = Counter(passage.kind for passage in passages(our_tree()))
    assert kinds["document"] > 500 and kinds["comment"] > 2000 and kinds["message"] > 300


BAD = [
    ("H1", "Of a tensor: whether it has been written to."),
    ("H1", "R3 Of an op that draws numbers, the state is kept."),
    ("H2", "What an operation has left is dropped."),
    ("H2", "Returns the size of what was read."),
    ("H3", "The argument is no dtype."),
    ("H3", "The name is none of those."),
    ("H3", "A size that nobody reads is open."),
    ("H4", "The recorder is told about each operation."),
    ("H4", "The compiler says that the size is fixed."),
    ("H5", "The next entry point is behind it."),
    ("H5", "Python goes on with the call."),
    ("H5", "The file is written anew."),
    ("H5", "All but for one are equal."),
    ("H6", "So has a capture been made."),
    ("H8", "The guard " + "of the first call " * 8 + "holds."),
    ("H8", "Two things: one thing: another."),
    ("H8", "A list (of things (of two kinds) in it) is kept."),
    ("H9", "The version is that of the base."),
    ("H10", "Null: it is something else."),
    ("H10", "False if it is not known: ask again."),
]
GOOD = [
    ("H1", "Of course the size is open. Of these, two are used."),
    ("H1", "Returns the state of an op."),
    ("H2", "What does it cost?"),
    ("H2", "Says why, where and what to do."),
    ("H3", "The argument is not a dtype. It is no longer used. There is no dtype."),
    ("H4", "The recorder reports each operation."),
    ("H5", "The next entry point is after it. Python continues. The key is behind autograd."),
    ("H6", "A capture has been made, and so have two graphs."),
    ("H8", "The guard " + "of the first call " * 5 + "holds. " + "It holds. " * 20),
    ("H8", "Two things: one thing and another. One more: this."),
    ("H9", "The version is the version of the base."),
    ("H10", "Returns null if it is something else."),
]


@pytest.mark.parametrize(("rule", "text"), BAD)
def test_rule_sees_a_bad_sample(rule: str, text: str) -> None:
    assert RULES[rule](Passage("a.md", 1, text, "document"))


@pytest.mark.parametrize(("rule", "text"), GOOD)
def test_rule_lets_a_good_sample_pass(rule: str, text: str) -> None:
    assert RULES[rule](Passage("a.md", 1, text, "document")) == []


def test_each_rule_has_both_samples() -> None:
    assert {rule for rule, _ in BAD} == {rule for rule, _ in GOOD} == set(RULES)


PLACES = {
    "a.md": "# One\n\nThe size\nis no dtype.\n\n```text\nis no dtype\n```\n| a | is no dtype |\n- is no dtype\n",
    "ir/a.h": "// A comment that\n// is no dtype.\nint a;  // is no dtype\n",
    "ir/a.cc": 'Fail("the thing is no dtype");  /* is no dtype */ f("is", \'"\', "no"); // "is no dtype"\n',
    "python/a.py": '"""A thing is\n\nis no dtype."""\n# is no dtype\nraise E("it is no dtype")\n',
    "tests/a.py": 'x = "it is no dtype"\n',
}


def test_prose_is_found_where_it_stands() -> None:
    seen = {folder: len(places) for (_, folder), places in violations(PLACES).items()}
    assert seen == {"documents": 3, "ir": 5, "python": 3}


@pytest.mark.parametrize(
    ("table", "wrong"),
    [
        ("| term | meaning |\n| --- | --- |\n| exit | an end |\n| guard | a test |\n", 0),
        ("| guard | a test |\n| guard | again |\n", 1),
        ("| guard | a test |\n| exit | an end |\n", 1),
        ("| guard | a test | more |\n", 1),
        ("no table\n", 1),
    ],
)
def test_glossary_rule(table: str, wrong: int) -> None:
    assert len(h7_glossary(table)) == wrong


@pytest.mark.parametrize(
    ("tree", "wrong"),
    [
        ({"ir/a.h": "// See b.h.\n"}, 1),
        ({"ir/a.h": "// See b.h.\n", "ir/b.h": ""}, 0),
        ({"ir/a.h": "// See ir/b.h.\n", "guards/b.h": ""}, 1),
        ({"ir/a.h": "// See pycore_frame.h and torch/script.h.\n"}, 0),
        ({"a.md": "Read `docs/gone.md`.\n"}, 1),
        ({"python/a.py": '"""As in _gone.py."""\n'}, 1),
    ],
)
def test_missing_files_rule(tree: Tree, wrong: int) -> None:
    assert len(h11_files_exist(tree)) == wrong


def accept() -> None:
    """Lowers the counts of TO_DO to those of the tree."""
    counts = {key: len(places) for key, places in our_violations().items()}
    rows = [
        f'    ("{rule}", "{folder}"): {min(count, allowed)},'
        for (rule, folder), allowed in sorted(
            TO_DO.items(), key=lambda row: (len(row[0][0]), row[0])
        )
        if (count := counts.get((rule, folder), 0))
    ]
    file = Path(__file__)
    table = re.compile(
        r"(?<=^TO_DO: dict\[tuple\[str, str\], int\] = \{\n).*?(?=^\})", re.MULTILINE | re.DOTALL
    )
    file.write_text(table.sub(lambda _: "\n".join(rows) + "\n", file.read_text(), count=1))


if __name__ == "__main__":
    if sys.argv[1:] == ["--accept"]:
        accept()
    elif len(sys.argv) == 3:
        print(*our_violations().get((sys.argv[1], sys.argv[2]), []), sep="\n")
    else:
        sys.exit("usage: python tests/prose_test.py --accept | RULE FOLDER")
