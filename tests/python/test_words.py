"""The report of a break, a guard or a miss has the names and lines of the user's own source."""

import functools
import json
import logging
import operator
import types

import pytest
import torch

import frametap


class Holder:
    def __init__(self):
        self.names = ["a", "b"]
        self.sizes = [4, 5]


HOLDER = Holder()


def shout(x):
    print(end="")
    return x


def calls(f, *args, times=3):
    compiled = frametap.compile(f)
    for _ in range(times):
        compiled(*args)
    return compiled


def test_a_break_inside_a_library_names_the_function_that_the_user_called():
    def f(x):
        y = x + 1
        logging.getLogger("frametap.test").debug("nothing")
        json.dumps({"a": 1})
        return y * 2

    report = frametap.explain(calls(f, torch.ones(2)))
    texts = [b.text for b in report.breaks if "json" in b.source_line]
    assert texts, report
    assert texts[0].endswith(": json.dumps")
    inside = [b.inside for b in report.breaks if "json" in b.source_line]
    assert "_json" in inside[0]
    assert all(b.file == __file__ for b in report.breaks), report


def test_callables_without_bytecode_have_the_users_names():
    def scale(x, n):
        return x * n

    twice = functools.partial(functools.partial(scale), n=2)
    for call, name in (
        (twice, "scale"),
        (torch.relu, "relu"),
        (operator.itemgetter(0), "itemgetter"),
    ):
        [segment] = frametap.segments(calls(call, torch.ones(2)))
        assert segment.text().startswith(f"segment {name}#0 {{\n  entry {name}:start")


def test_a_break_in_the_users_own_line_has_no_inside():
    report = frametap.explain(calls(shout, torch.ones(2)))
    assert [b.inside for b in report.breaks] == [""]
    assert report.breaks[0].text.endswith(": print")


def test_the_error_of_fullgraph_names_what_the_user_called():
    def f(x):
        y = x + 1
        json.dumps({"a": 1})
        return y

    try:
        frametap.compile(f, fullgraph=True)(torch.ones(2))
    except frametap.FullGraphError as error:
        assert "(json.dumps)" in str(error)
        assert "_json" not in str(error)
    else:
        raise AssertionError("the graph ends at json.dumps")


def test_wanted_and_found_differ_where_two_objects_have_one_name():
    def f(x):
        class Local:
            k = 2

        print(end="")
        y = x * Local.k
        return y + 1

    compiled = calls(f, torch.ones(2))
    for miss in frametap.explain(compiled).miss_texts:
        assert miss.want.removeprefix("is ") != miss.got, miss

    class Twice:
        pass

    one = type("Same", (), {})
    two = type("Same", (), {})

    def g(x, cls):
        return x + 1 if cls is one else x + 2

    compiled = frametap.compile(g)
    for cls in (one, two, Twice):
        compiled(torch.ones(2), cls)
    misses = frametap.explain(compiled).miss_texts
    assert misses
    for miss in misses:
        assert miss.want.removeprefix("is ") != miss.got, miss


def test_values_that_wait_on_the_stack_are_named_by_their_expression():
    def f(x):
        y = x * 2
        return HOLDER.sizes[0] * y + len(HOLDER.names) * (y + shout(y))

    guards = frametap.guards(calls(f, torch.ones(2)))
    names = {g.source: g.stands_for for g in guards if g.source.startswith("S")}
    assert names["S1[0]"] == "`HOLDER.sizes[0] * y`"
    assert names["S1[1]"] == "`len(HOLDER.names)`"
    assert "S1[1] (`len(HOLDER.names)`) : " in "\n".join(map(str, guards))


def test_a_loop_that_goes_on_is_named_by_its_line():
    def f(x):
        for i in range(3):
            x = x + i
            print(end="")
        return x

    compiled = calls(f, torch.ones(2))
    names = {g.stands_for for g in frametap.guards(compiled) if g.source == "S[0]"}
    assert names == {"`for i in range(3):`"}
    misses = frametap.explain(compiled).miss_texts
    assert misses
    assert "`for i in range(3):`" in str(misses[0])


def test_every_guard_and_break_of_a_program_with_breaks_has_a_line():
    def f(x, n):
        y = x * n
        for size in HOLDER.sizes:
            y = y + size
            print(end="")
        return [y + shout(y), {"n": n}]

    compiled = calls(f, torch.ones(2), 3)
    assert all(g.line for g in frametap.guards(compiled) if g.source != "state")
    assert all(b.line and b.source_line for b in frametap.explain(compiled).breaks)


@pytest.mark.parametrize("character", ["é", "語", "🙂"])
@pytest.mark.parametrize("before", range(4))
def test_long_text_is_cut_between_characters(character, before):
    text = "a" * before + character * 60

    def choose(x, word):
        return (x + 1, "b" + word) if word == text else (x - 1, "b" + text)

    compiled = calls(choose, torch.ones(2), text)
    frametap.explain(compiled)  # reads the texts of all guards
    [segment] = frametap.segments(compiled)
    want, shown = repr(text), str(segment)
    cut = [line for line in shown.splitlines() if "..." in line]
    assert len(cut) >= 2, shown  # a guard and a constant
    for line in cut:
        kept = line[line.index(want[0]) : line.index("...")]
        assert want.startswith(kept) or f"'b{text}'".startswith(kept), line
    assert compiled(torch.ones(2), "x")[1] == "b" + text


def test_a_module_without_a_name_can_be_read():
    module = types.ModuleType("nameless")
    module.scale = 2.0
    del module.__name__

    def scaled(x):
        return x * module.scale, module

    compiled = calls(scaled, torch.ones(2))
    assert frametap.explain(compiled).faults == 0
    assert compiled(torch.ones(2))[1] is module
    module.scale = 3.0
    assert compiled(torch.ones(2))[0].tolist() == [3.0, 3.0]
    del module.scale
    with pytest.raises(AttributeError, match="has no attribute 'scale'"):
        compiled(torch.ones(2))
