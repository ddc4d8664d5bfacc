"""Calls of every shape."""

# The programs do on purpose what a linter warns of.
# ruff: noqa

from __future__ import annotations

import re
from functools import partial, reduce

import pytest

from opcodes.harness import Program, check, programs


def spread(a, b=2, *args, c=3, **kwargs):
    return a, b, args, c, kwargs


class Callable:
    def __call__(self, *args, **kwargs):
        return args, kwargs

    def method(self, x, *, y=1):
        return x, y


def program_shapes():
    return (
        spread(1),
        spread(1, c=2),
        spread(1, 2, 3, 4, d=5),
        spread(*[1, 2], c=5, e=6),
        spread(*(1,), *range(2), x=1, y=2),
        spread(*iter([1, 2])),
        spread(b=1, a=0),
    )


def program_methods():
    thing = Callable()
    bound = thing.method
    return thing(1, k=2), thing.method(1, y=2), bound(3), bound(4, y=5), Callable.method(thing, 6)


def program_builtins():
    return (
        len([1, 2]),
        isinstance(1, int),
        max(3, 1, key=lambda x: -x),
        sorted([3, 1, 2], key=lambda x: -x, reverse=True),
        list(map(lambda x: x + 1, [1, 2])),
        ["a", "b"],
        f"{1}{2}",
        dict(a=1, b=2),
        type("T", (), {"x": 1}).x,
        str(1),
        tuple([1]),
        print.__name__,
    )


def program_conventions_of_c_functions():
    class Keyed(dict):
        pass

    return (
        re.compile("b").search("abc").span(),
        "a b c".split(sep=" ", maxsplit=1),
        {"a": 1}.get("a", 2),
        Keyed(a=1).get("a"),
        dict.get({"a": 1}, "b", 3),
        dict.fromkeys("ab", 0),
        str.maketrans("a", "b"),
        bytes.fromhex("0aff"),
        [3, 1].index(1),
        "x".join(["a", "b"]),
        str(b"ab", "ascii"),
        str(object=3),
        len([1]),
        divmod(7, 2),
        sum([1, 2], start=4),
        int("11", base=2),
    )


def program_c_function_of_another_type():
    return str.join(1, [])


def program_c_function_without_self():
    return dict.get()


def program_c_function_raises():
    return getattr(3, "missing")


def program_missing_argument():
    return spread()


def program_surplus_argument():
    return (lambda x: x)(1, 2)


def program_unexpected_keyword():
    def f(x):
        return x

    return f(1, y=2)


def program_repeated_keyword():
    return spread(1, **{"c": 1}, **{"c": 2})


def program_keyword_given_twice():
    return spread(1, c=1, **{"c": 2})


def program_star_not_iterable():
    return spread(*1)


def program_star_not_iterable_among_others():
    return spread(1, *2)


def program_double_star_not_mapping():
    return spread(**1)


def program_double_star_not_mapping_among_others():
    return spread(a=1, **2)


class Mapping:
    def keys(self):
        return ["a", "b"]

    def __getitem__(self, key):
        return key * 2


def program_double_star_mapping():
    return spread(**Mapping())


def program_star_generator_that_raises():
    def items():
        yield 1
        raise KeyError("in the middle")

    return spread(*items())


def program_not_callable():
    value = 3
    return value(1, 2)


def program_many_arguments():
    return (lambda *args, **kw: (len(args), sorted(kw)[:3]))(
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        10,
        11,
        12,
        13,
        14,
        15,
        16,
        17,
        18,
        19,
        20,
        21,
        22,
        23,
        24,
        25,
        26,
        27,
        28,
        29,
        30,
        31,
        32,
        33,
        34,
        35,
        36,
        37,
        38,
        39,
        40,
        41,
        42,
        43,
        44,
        45,
        46,
        47,
        48,
        49,
        50,
        51,
        52,
        53,
        54,
        55,
        56,
        57,
        58,
        59,
        60,
        61,
        62,
        63,
        64,
        65,
        66,
        67,
        68,
        69,
        70,
        71,
        72,
        73,
        74,
        75,
        76,
        77,
        78,
        79,
        80,
        81,
        82,
        83,
        84,
        85,
        86,
        87,
        88,
        89,
        90,
        91,
        92,
        93,
        94,
        95,
        96,
        97,
        98,
        99,
        100,
        101,
        102,
        103,
        104,
        105,
        106,
        107,
        108,
        109,
        110,
        111,
        112,
        113,
        114,
        115,
        116,
        117,
        118,
        119,
        120,
        121,
        122,
        123,
        124,
        125,
        126,
        127,
        128,
        129,
        130,
        131,
        132,
        133,
        134,
        135,
        136,
        137,
        138,
        139,
        140,
        141,
        142,
        143,
        144,
        145,
        146,
        147,
        148,
        149,
        150,
        151,
        152,
        153,
        154,
        155,
        156,
        157,
        158,
        159,
        160,
        161,
        162,
        163,
        164,
        165,
        166,
        167,
        168,
        169,
        170,
        171,
        172,
        173,
        174,
        175,
        176,
        177,
        178,
        179,
        180,
        181,
        182,
        183,
        184,
        185,
        186,
        187,
        188,
        189,
        190,
        191,
        192,
        193,
        194,
        195,
        196,
        197,
        198,
        199,
        200,
        201,
        202,
        203,
        204,
        205,
        206,
        207,
        208,
        209,
        210,
        211,
        212,
        213,
        214,
        215,
        216,
        217,
        218,
        219,
        220,
        221,
        222,
        223,
        224,
        225,
        226,
        227,
        228,
        229,
        230,
        231,
        232,
        233,
        234,
        235,
        236,
        237,
        238,
        239,
        240,
        241,
        242,
        243,
        244,
        245,
        246,
        247,
        248,
        249,
        250,
        251,
        252,
        253,
        254,
        255,
        256,
        257,
        258,
        259,
        260,
        261,
        262,
        263,
        264,
        265,
        266,
        267,
        268,
        269,
        270,
        271,
        272,
        273,
        274,
        275,
        276,
        277,
        278,
        279,
        280,
        281,
        282,
        283,
        284,
        285,
        286,
        287,
        288,
        289,
        290,
        291,
        292,
        293,
        294,
        295,
        296,
        297,
        298,
        299,
        k0=0,
        k1=1,
        k2=2,
        k3=3,
        k4=4,
        k5=5,
        k6=6,
        k7=7,
        k8=8,
        k9=9,
        k10=10,
        k11=11,
        k12=12,
        k13=13,
        k14=14,
        k15=15,
        k16=16,
        k17=17,
        k18=18,
        k19=19,
        k20=20,
        k21=21,
        k22=22,
        k23=23,
        k24=24,
        k25=25,
        k26=26,
        k27=27,
        k28=28,
        k29=29,
        k30=30,
        k31=31,
        k32=32,
        k33=33,
        k34=34,
        k35=35,
        k36=36,
        k37=37,
        k38=38,
        k39=39,
        k40=40,
        k41=41,
        k42=42,
        k43=43,
        k44=44,
        k45=45,
        k46=46,
        k47=47,
        k48=48,
        k49=49,
        k50=50,
        k51=51,
        k52=52,
        k53=53,
        k54=54,
        k55=55,
        k56=56,
        k57=57,
        k58=58,
        k59=59,
        k60=60,
        k61=61,
        k62=62,
        k63=63,
        k64=64,
        k65=65,
        k66=66,
        k67=67,
        k68=68,
        k69=69,
        k70=70,
        k71=71,
        k72=72,
        k73=73,
        k74=74,
        k75=75,
        k76=76,
        k77=77,
        k78=78,
        k79=79,
        k80=80,
        k81=81,
        k82=82,
        k83=83,
        k84=84,
        k85=85,
        k86=86,
        k87=87,
        k88=88,
        k89=89,
        k90=90,
        k91=91,
        k92=92,
        k93=93,
        k94=94,
        k95=95,
        k96=96,
        k97=97,
        k98=98,
        k99=99,
        k100=100,
        k101=101,
        k102=102,
        k103=103,
        k104=104,
        k105=105,
        k106=106,
        k107=107,
        k108=108,
        k109=109,
        k110=110,
        k111=111,
        k112=112,
        k113=113,
        k114=114,
        k115=115,
        k116=116,
        k117=117,
        k118=118,
        k119=119,
        k120=120,
        k121=121,
        k122=122,
        k123=123,
        k124=124,
        k125=125,
        k126=126,
        k127=127,
        k128=128,
        k129=129,
        k130=130,
        k131=131,
        k132=132,
        k133=133,
        k134=134,
        k135=135,
        k136=136,
        k137=137,
        k138=138,
        k139=139,
        k140=140,
        k141=141,
        k142=142,
        k143=143,
        k144=144,
        k145=145,
        k146=146,
        k147=147,
        k148=148,
        k149=149,
        k150=150,
        k151=151,
        k152=152,
        k153=153,
        k154=154,
        k155=155,
        k156=156,
        k157=157,
        k158=158,
        k159=159,
        k160=160,
        k161=161,
        k162=162,
        k163=163,
        k164=164,
        k165=165,
        k166=166,
        k167=167,
        k168=168,
        k169=169,
        k170=170,
        k171=171,
        k172=172,
        k173=173,
        k174=174,
        k175=175,
        k176=176,
        k177=177,
        k178=178,
        k179=179,
        k180=180,
        k181=181,
        k182=182,
        k183=183,
        k184=184,
        k185=185,
        k186=186,
        k187=187,
        k188=188,
        k189=189,
        k190=190,
        k191=191,
        k192=192,
        k193=193,
        k194=194,
        k195=195,
        k196=196,
        k197=197,
        k198=198,
        k199=199,
        k200=200,
        k201=201,
        k202=202,
        k203=203,
        k204=204,
        k205=205,
        k206=206,
        k207=207,
        k208=208,
        k209=209,
        k210=210,
        k211=211,
        k212=212,
        k213=213,
        k214=214,
        k215=215,
        k216=216,
        k217=217,
        k218=218,
        k219=219,
        k220=220,
        k221=221,
        k222=222,
        k223=223,
        k224=224,
        k225=225,
        k226=226,
        k227=227,
        k228=228,
        k229=229,
        k230=230,
        k231=231,
        k232=232,
        k233=233,
        k234=234,
        k235=235,
        k236=236,
        k237=237,
        k238=238,
        k239=239,
        k240=240,
        k241=241,
        k242=242,
        k243=243,
        k244=244,
        k245=245,
        k246=246,
        k247=247,
        k248=248,
        k249=249,
        k250=250,
        k251=251,
        k252=252,
        k253=253,
        k254=254,
        k255=255,
        k256=256,
        k257=257,
        k258=258,
        k259=259,
        k260=260,
        k261=261,
        k262=262,
        k263=263,
        k264=264,
        k265=265,
        k266=266,
        k267=267,
        k268=268,
        k269=269,
    )


def program_callee_raises():
    def inner(x):
        return 1 / x

    return [inner(1), inner(0)]


def program_bound_builtin_method():
    items = []
    append = items.append
    append(1)
    items.append(2)
    items.extend([3])
    return items


def program_partial_and_reduce():
    return partial(spread, 1, c=2)(3), reduce(lambda a, b: a * 10 + b, [1, 2, 3])


def program_property_and_operators():
    class Number:
        def __init__(self, n):
            self.n = n

        @property
        def double(self):
            return Number(self.n * 2)

        def __add__(self, other):
            return Number(self.n + other.n)

        def __getattr__(self, name):
            return f"no {name}"

    return (Number(1) + Number(2).double).n, Number(1).other


@pytest.mark.parametrize("program", programs(__name__))
def test_program(program: Program) -> None:
    check(program)
