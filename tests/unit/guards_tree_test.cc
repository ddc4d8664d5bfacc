// Each accessor and each kind of guard: a hit, a miss, and what is said of the miss.
// Laws: guard_recorder/R3, guard_tree/V1
#include "absl/strings/str_cat.h"
#include "tests/unit/guards_fixture.h"

namespace frametap {
namespace {

const GuardSite kHere;

TensorRead AllSizes() {
  TensorRead read;
  read.sizes = true;
  return read;
}

TEST_F(GuardsTest, LocalsFollowTheFrame) {
  Exec("x = 3");
  GuardRecorder r(WorldState::Now());
  const SourceId x = Arg(r, "x");
  r.Value(x, kHere);
  auto tree = PlantTree(r.Freeze({x}));
  EXPECT_TRUE(Hits(*tree));
  EXPECT_EQ(tree->Object(x), Get("x"));
  Exec("x = 4");
  EXPECT_EQ(Why(*tree), "L.x: variable 'x' is 4, was 3");
  Exec("del x");
  EXPECT_EQ(Why(*tree), "L.x: variable 'x' is not bound");
  Exec("x = 3");
  EXPECT_TRUE(Hits(*tree));
}

TEST_F(GuardsTest, ValuesAreComparedWithTheirTypes) {
  const std::pair<const char*, std::vector<const char*>> rows[] = {
      {"3", {"True", "3.0", "4", "None"}},
      {"1", {"True"}},
      {"2 ** 80", {"2 ** 81", "-2 ** 80"}},
      {"0.0", {"-0.0", "0", "float('nan')"}},
      {"'mean'", {"'sum'", "b'mean'", "None"}},
      {"b'x'", {"'x'"}},
      {"1 + 2j", {"1 - 2j"}},
      {"(1, 2)", {"(1, 2, 3)", "(1, True)", "[1, 2]", "(1, 2.0)"}},
      {"slice(1, None, 2)", {"slice(1, None, 3)", "slice(True, None, 2)"}},
      {"frozenset({1})", {"frozenset({2})", "frozenset({True})"}},
      {"torch.float32", {"torch.float64"}},
      {"torch.device('cpu')", {"torch.device('meta')"}},
      {"torch.strided", {"torch.sparse_coo"}},
      {"torch.channels_last", {"torch.contiguous_format"}},
      {"torch.Size([1, 2])", {"(1, 2)", "torch.Size([1, 3])"}},
      {"None", {"0", "False", "..."}},
  };
  for (const auto& [same, others] : rows) {
    Exec(std::string("x = ") + same);
    GuardRecorder r(WorldState::Now());
    r.Value(Arg(r, "x"), kHere);
    auto tree = PlantTree(r.Freeze({}));
    // Not the same object, where Python allows it.
    Exec(absl::StrCat("x = eval(compile(\"\"\"", same, "\"\"\", 'other', 'eval'))"));
    EXPECT_TRUE(Hits(*tree)) << same;
    for (const char* other : others) {
      Exec(std::string("x = ") + other);
      EXPECT_FALSE(Hits(*tree)) << same << " against " << other;
    }
  }
}

TEST_F(GuardsTest, NanIsComparedByIdentity) {
  for (const char* value : {"nan", "(1, nan)", "frozenset({nan})", "complex(0, nan)"}) {
    Exec(std::string("nan = float('nan'); x = ") + value);
    GuardRecorder r(WorldState::Now());
    r.Value(Arg(r, "x"), kHere);
    auto tree = PlantTree(r.Freeze({}));
    EXPECT_TRUE(Hits(*tree)) << value;
    Exec(std::string("nan = float('nan'); x = ") + value);
    EXPECT_FALSE(Hits(*tree)) << value;
  }
}

TEST_F(GuardsTest, ValueOfAnyOtherObjectIsIdentity) {
  Exec("class A:\n  def __eq__(self, other): return True\nx = A()");
  GuardRecorder r(WorldState::Now());
  r.Value(Arg(r, "x"), kHere);
  auto tree = PlantTree(r.Freeze({}));
  EXPECT_TRUE(Hits(*tree));
  Exec("x = A()");
  EXPECT_EQ(Why(*tree), "L.x: another object");
}

TEST_F(GuardsTest, TypesAreExactAndWatched) {
  Exec("class Base: scale = 1\nclass A(Base): pass\nclass B(A): pass\nx = A()");
  const auto make = [&] {
    GuardRecorder r(WorldState::Now());
    r.Type(Arg(r, "x"), kHere);
    for (const char* name : {"other", "scale"}) r.ReadsName(Str(name).get());
    return PlantTree(r.Freeze({}));
  };
  auto tree = make();
  EXPECT_TRUE(Hits(*tree));
  Exec("x = A()");
  EXPECT_TRUE(Hits(*tree));
  Exec("A.unread = 1; Base.unread = 2");
  EXPECT_TRUE(Hits(*tree));
  Exec("x = B()");
  EXPECT_EQ(Why(*tree), "L.x: type: B != A");
  Exec("x = A(); x.__class__ = B");
  EXPECT_FALSE(Hits(*tree));
  Exec("x = A(); A.other = 1");
  EXPECT_EQ(Why(*tree), "L.x: an attribute of A or of one of its bases was changed");
  tree = make();
  EXPECT_TRUE(Hits(*tree));
  Exec("Base.scale = 2");
  EXPECT_FALSE(Hits(*tree));
  Exec("Base.scale = 1");
  EXPECT_TRUE(Hits(*tree));
}

TEST_F(GuardsTest, AnAddressIsGuardedWithoutHoldingTheObject) {
  Exec("class A: pass\nx = A(); other = A(); import weakref; gone = weakref.ref(x)");
  GuardRecorder r(WorldState::Now());
  r.Add(GuardKind::kAddress, Arg(r, "x"), kHere);
  auto tree = PlantTree(r.Freeze({}));
  EXPECT_TRUE(Hits(*tree));
  Exec("kept = x; x = other");
  EXPECT_EQ(Why(*tree), "L.x: another object");
  Exec("x = kept");
  EXPECT_TRUE(Hits(*tree));
  Exec("x = other; del kept");
  EXPECT_TRUE(PyObject_IsTrue(Eval("gone() is None").get()));
}

TEST_F(GuardsTest, ARegistrationWithAnAbstractClassIsAMiss) {
  Exec("import abc\nclass A(abc.ABC): pass\nclass B: pass");
  GuardRecorder r(WorldState::Now());
  r.Registry(kHere);
  auto tree = PlantTree(r.Freeze({}));
  EXPECT_TRUE(Hits(*tree));
  Exec("A.register(B)");
  EXPECT_EQ(Why(*tree), "abc.get_cache_token: a class was registered with an abstract base class");
}

TEST_F(GuardsTest, InstanceAttributesSlotsAndDicts) {
  Exec("class A: pass\nclass S:\n  __slots__ = ('w',)\nx = A(); x.n = 1; x.s = S(); x.s.w = 'a'");
  GuardRecorder r(WorldState::Now());
  const SourceId x = Arg(r, "x");
  r.Value(Attr(r, x, "n"), kHere);
  const SourceId w = Attr(r, Attr(r, x, "s"), "w");
  r.Value(w, kHere);
  r.NoInstanceAttr(x, Str("extra").get(), kHere);
  const SourceId dict = r.Child(x, Accessor::kDict, 0, nullptr, Eval("x.__dict__").get());
  r.Length(dict, kHere);
  auto tree = PlantTree(r.Freeze({w}));
  EXPECT_TRUE(Hits(*tree));
  EXPECT_EQ(tree->Object(w), Eval("x.s.w").get());
  Exec("x.n = 2");
  EXPECT_EQ(Why(*tree), "L.x.n: attribute 'n' is 2, was 1");
  Exec("x.n = 1; x.s.w = 'b'");
  EXPECT_EQ(Why(*tree), "L.x.s.w: attribute 'w' is 'b', was 'a'");
  Exec("del x.s.w");
  EXPECT_EQ(Why(*tree), "L.x.s.w: attribute 'w' is missing");
  Exec("x.s.w = 'a'");
  EXPECT_TRUE(Hits(*tree));
  Exec("x.extra = 1");
  EXPECT_EQ(Why(*tree), "L.x: attribute 'extra' is present");
  Exec("del x.extra; x.other = 1");
  EXPECT_EQ(Why(*tree), "L.x.__dict__: a key was added");
  Exec("x.__dict__ = {'n': 1, 's': x.s}");
  EXPECT_TRUE(Hits(*tree));
  Exec("x.__dict__ = {'n': 5, 's': x.s}");
  EXPECT_FALSE(Hits(*tree));
}

TEST_F(GuardsTest, ItemsLengthsAndListsAreReadEachTime) {
  Exec("x = [1, (2, 3)]");
  GuardRecorder r(WorldState::Now());
  const SourceId x = Arg(r, "x");
  r.Type(x, kHere);
  r.Length(x, kHere);
  r.Value(ItemOf(r, ItemOf(r, x, 1), 0), kHere);
  auto tree = PlantTree(r.Freeze({}));
  EXPECT_TRUE(Hits(*tree));
  Exec("x.append(1)");
  EXPECT_EQ(Why(*tree), "L.x: length: 3 != 2");
  Exec("x.pop(); x[1] = (4, 3)");
  EXPECT_EQ(Why(*tree), "L.x[1][0]: L.x[1][0] is 4, was 2");
  Exec("x[1] = ()");
  EXPECT_EQ(Why(*tree), "L.x[1][0]: index 0 is out of range, length is 0");
  Exec("x = (1, (2, 3))");
  EXPECT_EQ(Why(*tree), "L.x: type: tuple != list");
}

TEST_F(GuardsTest, KeysOfDicts) {
  Exec("x = {'a': 1, 'b': 2}");
  GuardRecorder r(WorldState::Now());
  const SourceId x = Arg(r, "x");
  r.Keys(x, kHere);
  r.Value(KeyOf(r, x, Str("a").get()), kHere);
  r.Absent(x, Str("mask").get(), kHere);
  r.Present(x, Str("b").get(), kHere);
  auto tree = PlantTree(r.Freeze({}));
  EXPECT_TRUE(Hits(*tree));
  Exec("x = {'b': 2, 'a': 1}");
  EXPECT_EQ(Why(*tree), "L.x: the order of the keys has changed");
  Exec("x = {'a': 1, 'b': 2, 'mask': 0}");
  EXPECT_EQ(Why(*tree), "L.x: key 'mask' was added");
  Exec("x = {'a': 1}");
  EXPECT_EQ(Why(*tree), "L.x: key 'b' is missing");
  Exec("x = {'a': 7, 'b': 2}");
  EXPECT_EQ(Why(*tree), "L.x[\"a\"]: key 'a' is 7, was 1");
}

TEST_F(GuardsTest, KeysOfOtherTypes) {
  Exec("import enum\nclass E(enum.Enum): A = 1\nk = E.A\nx = {1: 'one', (1, 'a'): 'pair', None: 0, k: 'enum'}");
  GuardRecorder r(WorldState::Now());
  const SourceId x = Arg(r, "x");
  r.Value(KeyOf(r, x, Int(1).get()), kHere);
  r.Value(KeyOf(r, x, Eval("(1, 'a')").get()), kHere);
  r.Value(KeyOf(r, x, Get("k")), kHere);
  r.Absent(x, Int(2).get(), kHere);
  auto tree = PlantTree(r.Freeze({}));
  EXPECT_TRUE(Hits(*tree));
  Exec("x[1.0] = 'uno'");
  EXPECT_FALSE(Hits(*tree));
  Exec("x[True] = 'one'; x[2] = 0");
  EXPECT_FALSE(Hits(*tree));
  Exec("del x[2]");
  EXPECT_TRUE(Hits(*tree));
}

TEST_F(GuardsTest, V1_NoCodeOfAUserRuns) {
  Exec(R"(
ran = []
class K:
    def __hash__(self): ran.append('hash'); return hash('a')
    def __eq__(self, other): ran.append('eq'); raise RuntimeError('no')
    def __repr__(self): ran.append('repr'); raise RuntimeError('no')
    def __bool__(self): ran.append('bool'); raise RuntimeError('no')
    def __len__(self): ran.append('len'); raise RuntimeError('no')
    def __getattribute__(self, name): ran.append('get'); raise RuntimeError('no')
x = {'a': 1}
y = 1
)");
  GuardRecorder r(WorldState::Now());
  const SourceId x = Arg(r, "x");
  const SourceId y = Arg(r, "y");
  r.Value(KeyOf(r, x, Str("a").get()), kHere);
  r.Absent(x, Str("b").get(), kHere);
  r.Keys(x, kHere);
  r.Value(y, kHere);
  r.Type(y, kHere);
  auto tree = PlantTree(r.Freeze({}));
  EXPECT_TRUE(Hits(*tree));
  Exec("x = {K(): 1}; ran.clear()");
  EXPECT_FALSE(Hits(*tree));
  Exec("x = K()");
  EXPECT_FALSE(Hits(*tree));
  Exec("x = {'a': 1}; y = K()");
  EXPECT_FALSE(Hits(*tree));
  Exec(
      "class S(str):\n  def __eq__(self, o): ran.append('str'); raise RuntimeError\n  __hash__ = str.__hash__\n"
      "ran.clear(); y = 1; x = {S('b'): 1}");
  EXPECT_FALSE(Hits(*tree));
  Exec("assert ran == [], ran");
}

TEST_F(GuardsTest, V1_TheErrorIndicatorStays) {
  Exec("x = 3");
  GuardRecorder r(WorldState::Now());
  r.Value(Arg(r, "x"), kHere);
  auto tree = PlantTree(r.Freeze({}));
  PyErr_SetString(PyExc_KeyError, "mine");
  EXPECT_TRUE(Hits(*tree));
  EXPECT_TRUE(PyErr_ExceptionMatches(PyExc_KeyError));
  PyErr_Clear();
}

TEST_F(GuardsTest, GlobalsClosuresDefaults) {
  Exec(R"(
import types
scale = 2
def outer():
    free = 'f'
    def entry(a, b=5, *, c='kw'): return a + scale + len(free)
    return entry
entry = outer()
)");
  GuardRecorder r(WorldState::Now());
  const SourceId f = r.Function(Get("entry"));
  r.Value(r.Child(f, Accessor::kGlobal, 0, Str("scale").get(), Get("scale")), kHere);
  r.Value(r.Child(f, Accessor::kClosure, 0, nullptr, Str("f").get()), kHere);
  r.Value(r.Child(f, Accessor::kDefault, 0, nullptr, Int(5).get()), kHere);
  r.Value(r.Child(f, Accessor::kKwDefault, 0, Str("c").get(), Str("kw").get()), kHere);
  auto tree = PlantTree(r.Freeze({}));
  EXPECT_TRUE(Hits(*tree));
  Exec("scale = 3");
  EXPECT_EQ(Why(*tree), "G.scale: global 'scale' is 3, was 2");
  Exec("scale = 2");
  EXPECT_TRUE(Hits(*tree));
  Exec("entry.__closure__[0].cell_contents = 'g'");
  EXPECT_FALSE(Hits(*tree));
  Exec("entry = outer()");
  EXPECT_TRUE(Hits(*tree));
  Exec("entry.__defaults__ = (6,)");
  EXPECT_FALSE(Hits(*tree));
  Exec("entry = outer(); entry.__kwdefaults__['c'] = 'other'");
  EXPECT_FALSE(Hits(*tree));
}

TEST_F(GuardsTest, CellsInAFrameAndBeforeIt) {
  Exec(R"(
def outer():
    free = 'f'
    def entry(a):
        def inner(): return a
        return free
    return entry
entry = outer()
)");
  // localsplus of entry: a (an argument and a cell), inner, free
  Ref<> a = Int(7);
  Ref<> a_cell = Ref<>::Steal(PyCell_New(a.get()));
  Ref<> free_cell = Eval("entry.__closure__[0]");
  GuardRecorder r(WorldState::Now());
  const SourceId ca = r.Cell(0, "a", a.get());
  const SourceId cf = r.Cell(2, "free", Str("f").get());
  r.Value(ca, kHere);
  r.Value(cf, kHere);
  auto tree = PlantTree(r.Freeze({ca}));
  PyObject* in_frame[] = {a_cell.get(), nullptr, free_cell.get()};
  Roots roots;
  roots.localsplus = in_frame;
  roots.nlocalsplus = 3;
  roots.function = Get("entry");
  EXPECT_EQ(tree->Check(roots), Verdict::kHit);
  PyObject* before[] = {a.get(), nullptr, nullptr};
  roots.localsplus = before;
  roots.cells_are_plain = true;
  EXPECT_EQ(tree->Check(roots), Verdict::kHit);
  EXPECT_EQ(tree->Object(ca), a.get());
  Exec("entry.__closure__[0].cell_contents = 'g'");
  EXPECT_EQ(tree->Check(roots), Verdict::kMiss);
  EXPECT_EQ(tree->Explain(roots).source, "C.free");
}

TEST_F(GuardsTest, StackMethodsAndDictKeys) {
  Exec("class A:\n  def m(self): pass\nx = A(); x.n = 1\nm = x.m\nd = {'k': 1}");
  GuardRecorder r(WorldState::Now());
  const SourceId m = r.Stack(1, Get("m"));
  const SourceId self = r.Child(m, Accessor::kSelf, 0, nullptr, Get("x"));
  const SourceId func = r.Child(m, Accessor::kFunc, 0, nullptr, Eval("A.m").get());
  r.Type(m, kHere);
  r.Identity(func, kHere);
  r.Value(Attr(r, self, "n"), kHere);
  const SourceId d = r.Stack(0, Get("d"));
  r.Value(r.Child(d, Accessor::kDictKeyAt, 0, nullptr, Str("k").get()), kHere);
  auto tree = PlantTree(r.Freeze({self}));
  PyObject* stack[] = {Get("d"), Get("m")};
  Roots roots;
  roots.stack = stack;
  roots.depth = 2;
  EXPECT_EQ(tree->Check(roots), Verdict::kHit);
  EXPECT_EQ(tree->Object(self), Get("x"));
  Exec("A.m.__code__ = (lambda self: 1).__code__");
  EXPECT_EQ(tree->Check(roots), Verdict::kMiss);
  EXPECT_EQ(tree->Explain(roots).why, "__code__ was replaced");
  roots.depth = 1;
  EXPECT_EQ(tree->Check(roots), Verdict::kMiss);
}

TEST_F(GuardsTest, TensorFacts) {
  Exec("x = torch.zeros(4, 32)");
  GuardRecorder r(WorldState::Now());
  const SourceId x = Arg(r, "x");
  r.Tensor(x, TensorRead(), kHere);
  TensorRead dim1;
  dim1.dims = 2;
  r.Tensor(x, dim1, kHere);
  const SourceId size = r.Child(x, Accessor::kSize, 0, nullptr, Int(4).get());
  r.Relation(size, Py_GT, Int(2).get(), true, kHere);
  auto tree = PlantTree(r.Freeze({size}));
  EXPECT_EQ(WantAt(*tree, 0), "tensor f32[*, 32] cpu");
  EXPECT_EQ(WantAt(*tree, 1), "> 2");
  EXPECT_EQ(tree->predicate_count(), 2u);
  EXPECT_TRUE(Hits(*tree));
  EXPECT_EQ(tree->Number(size), 4);
  Exec("x = torch.zeros(8, 32)");
  EXPECT_TRUE(Hits(*tree));
  EXPECT_EQ(tree->Number(size), 8);
  const std::pair<const char*, const char*> misses[] = {
      {"torch.zeros(4, 48)", "dim 1: 48 != 32"},
      {"torch.zeros(4, 32).double()", "dtype: f64 != f32"},
      {"torch.zeros(4)", "rank: 1 != 2"},
      {"torch.zeros(4, 32, device='meta')", "device: meta != cpu"},
      {"torch.zeros(4, 32, requires_grad=True)", "requires_grad: requires grad != no grad"},
      {"nn.Parameter(torch.zeros(4, 32), False)", "type: Parameter != Tensor"},
      {"3", "type: int != Tensor"},
  };
  for (const auto& [code, why] : misses) {
    Exec(std::string("x = ") + code);
    EXPECT_EQ(Why(*tree), std::string("L.x: ") + why);
  }
  Exec("x = torch.zeros(2, 32)");
  EXPECT_EQ(Why(*tree), "L.x.size(0): not 2 > 2");
  Exec("x = torch.zeros(4, 32).to_sparse()");
  EXPECT_FALSE(Hits(*tree));
  Exec("with torch.inference_mode(): x = torch.zeros(4, 32)");
  EXPECT_FALSE(Hits(*tree));
  Exec("x = torch.zeros(4, 32, dtype=torch.complex64).conj().real");
  EXPECT_TRUE(Hits(*tree));
}

TEST_F(GuardsTest, StridesAndOffsetsAreReadOnlyIfAsked) {
  Exec("x = torch.zeros(4, 32)");
  const auto make = [&](bool strides) {
    GuardRecorder r(WorldState::Now());
    TensorRead read = AllSizes();
    read.strides = strides;
    r.Tensor(Arg(r, "x"), read, kHere);
    return PlantTree(r.Freeze({}));
  };
  auto sizes = make(false), strides = make(true);
  Exec("x = torch.zeros(32, 4).t()");
  EXPECT_TRUE(Hits(*sizes));
  EXPECT_EQ(Why(*strides), "L.x: stride 0: 1 != 32");
  Exec("x = torch.zeros(5, 32)[1:]");
  EXPECT_TRUE(Hits(*sizes));
  EXPECT_EQ(Why(*strides), "L.x: storage offset is not 0");
}

TEST_F(GuardsTest, GradIsReachedWithoutKeepingIt) {
  Exec("x = torch.zeros(3, requires_grad=True); x.sum().backward()");
  GuardRecorder r(WorldState::Now());
  const SourceId x = Arg(r, "x");
  const SourceId grad = r.Child(x, Accessor::kGrad, 0, nullptr, Eval("x.grad").get());
  r.Tensor(grad, AllSizes(), kHere);
  auto tree = PlantTree(r.Freeze({grad}));
  // A gradient that Python has not seen yet.
  Exec("x = torch.zeros(3, requires_grad=True); x.sum().backward()");
  EXPECT_TRUE(Hits(*tree));
  PyObject* seen = tree->Object(grad);
  EXPECT_EQ(seen, Eval("x.grad").get());
  EXPECT_GE(Py_REFCNT(seen), 1);
  Exec("x.grad = None");
  EXPECT_EQ(Why(*tree), "L.x.grad: type: NoneType != Tensor");
}

TEST_F(GuardsTest, Relations) {
  Exec("x = 5; y = 0.5");
  const auto tree_of = [&](const char* name, int op, const char* constant, bool outcome) {
    GuardRecorder r(WorldState::Now());
    r.Relation(Arg(r, name), op, Eval(constant).get(), outcome, kHere);
    return PlantTree(r.Freeze({}));
  };
  auto above = tree_of("x", Py_GT, "2", true);
  auto not_below = tree_of("y", Py_LT, "0.25", false);
  auto mixed = tree_of("x", Py_GE, "4.5", true);
  EXPECT_TRUE(Hits(*above));
  EXPECT_TRUE(Hits(*not_below));
  EXPECT_TRUE(Hits(*mixed));
  Exec("x = 2; y = float('nan')");
  EXPECT_FALSE(Hits(*above));
  EXPECT_TRUE(Hits(*not_below));
  EXPECT_FALSE(Hits(*mixed));
  Exec("x = 2 ** 70; y = 0.1");
  EXPECT_FALSE(Hits(*above));
  EXPECT_FALSE(Hits(*not_below));
  Exec("x = True; y = 1");
  EXPECT_FALSE(Hits(*above));
  EXPECT_FALSE(Hits(*not_below));
}

TEST_F(GuardsTest, SameObjects) {
  Exec("x = torch.zeros(2); y = x; z = torch.zeros(2)");
  GuardRecorder r(WorldState::Now());
  const SourceId x = Arg(r, "x"), y = Arg(r, "y"), z = Arg(r, "z");
  r.SameObject(x, y, true, kHere);
  r.SameObject(z, x, false, kHere);
  auto tree = PlantTree(r.Freeze({}));
  EXPECT_EQ(WantAt(*tree, 0), "is L.x");
  EXPECT_TRUE(Hits(*tree));
  Exec("z = x");
  EXPECT_EQ(Why(*tree), "L.z: it is L.x");
  Exec("z = torch.zeros(2); y = torch.zeros(2)");
  EXPECT_EQ(Why(*tree), "L.y: it is not L.x");
}

TEST_F(GuardsTest, WorldState) {
  Exec("x = 1");
  GuardRecorder r(WorldState::Now());
  r.Type(Arg(r, "x"), kHere);
  EXPECT_EQ(r.StateFacts(), (std::vector<StateFact>{{StateField::kGradMode, true}, {StateField::kAutocast, false}}));
  auto tree = PlantTree(r.Freeze({}));
  EXPECT_TRUE(Hits(*tree));
  const std::pair<const char*, const char*> changes[] = {
      {"torch.no_grad()", "state: grad_mode(off) != grad_mode(on)"},
      {"torch.autocast('cpu', dtype=torch.bfloat16)", "state: autocast(bf16) != autocast(off)"},
      {"torch.inference_mode()", "state: grad_mode(off) != grad_mode(on)"},
      {"torch.overrides.TorchFunctionMode()", "state: modes(on) != modes(off)"},
      {"torch.utils._python_dispatch.TorchDispatchMode()", "state: modes(on) != modes(off)"},
      {"torch._C.DisableTorchFunctionSubclass()", "state: modes(on) != modes(off)"},
  };
  Exec("import torch.utils._python_dispatch, torch.overrides");
  for (const auto& [manager, why] : changes) {
    Exec(std::string("manager = ") + manager + "\nmanager.__enter__()");
    EXPECT_EQ(Why(*tree), why) << manager;
    Exec("manager.__exit__(None, None, None)");
    EXPECT_TRUE(Hits(*tree)) << manager;
  }
  Exec("torch.set_default_dtype(torch.float64)");
  EXPECT_EQ(Why(*tree), "state: default_dtype(f64) != default_dtype(f32)");
  Exec("torch.set_default_dtype(torch.float32); torch.use_deterministic_algorithms(True)");
  EXPECT_EQ(Why(*tree), "state: deterministic(on) != deterministic(off)");
  Exec("torch.use_deterministic_algorithms(False)");
  EXPECT_TRUE(Hits(*tree));
}

TEST_F(GuardsTest, LinesBindInputs) {
  Exec("x = torch.zeros(2, 3); k = 2.5");
  GuardRecorder r(WorldState::Now());
  const SourceId x = Arg(r, "x"), k = Arg(r, "k");
  TensorRead read = AllSizes();
  read.strides = true;
  Ref<PyCodeObject> code = Ref<PyCodeObject>::Steal(PyCode_NewEmpty("f.py", "f", 7));
  r.Tensor(x, read, {code.get(), 0});
  code = {};  // the guards keep it
  tell_position = [](PyCodeObject* at, int) { return Position{"f", at->co_firstlineno, 0, ""}; };
  const auto tree = PlantTree(r.Freeze({k}));
  const auto lines = tree->Lines({{x, ValueId(0)}, {k, ValueId(1)}});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(WantAt(*tree, 0), "tensor f32[2, 3]{3, 1} cpu");
  EXPECT_EQ(lines[0].binds, ValueId(0));
  EXPECT_EQ(lines[0].why.line, 7);
  tell_position = nullptr;
  EXPECT_FALSE(lines[1].predicate.has_value());
  EXPECT_EQ(lines[1].binds, ValueId(1));
}

TEST_F(GuardsTest, R3_PredicatesAreNotSaidTwiceAndRewind) {
  Exec("x = {'a': 1}; y = 3");
  GuardRecorder r(WorldState::Now());
  const SourceId x = Arg(r, "x");
  r.Keys(x, kHere);
  r.Keys(x, kHere);
  r.Length(x, kHere);
  const auto mark = r.mark();
  EXPECT_EQ(mark.predicates, 1u);
  const SourceId y = Arg(r, "y");
  r.Value(y, kHere);
  r.Relation(y, Py_GT, Int(1).get(), true, kHere);
  r.Absent(x, Str("b").get(), kHere);
  EXPECT_EQ(r.mark().predicates, 3u);
  EXPECT_EQ(r.mark().sources, 2u);
  r.Rewind(mark);
  EXPECT_EQ(r.mark().predicates, 1u);
  EXPECT_EQ(r.mark().sources, 1u);
  EXPECT_EQ(Arg(r, "y"), y);
  r.Value(y, kHere);
  auto tree = PlantTree(r.Freeze({}));
  EXPECT_EQ(tree->predicate_count(), 2u);
  EXPECT_TRUE(Hits(*tree));
  Exec("y = 4");
  EXPECT_FALSE(Hits(*tree));
}

TEST_F(GuardsTest, SourcesAreOneByEqualKey) {
  Exec("x = {'ab': 1, 1: 2, 1.0j: 3}");
  GuardRecorder r(WorldState::Now());
  const SourceId x = Arg(r, "x");
  const SourceId a = KeyOf(r, x, Str("ab").get());
  EXPECT_EQ(KeyOf(r, x, Eval("''.join(['a', 'b'])").get()), a);
  const SourceId one = KeyOf(r, x, Int(1).get());
  EXPECT_EQ(KeyOf(r, x, Int(1).get()), one);
  EXPECT_NE(KeyOf(r, x, Py_True), one);
  EXPECT_EQ(PlantTree(r.Freeze({a}))->Sources().Name(a), "L.x[\"ab\"]");
}

TEST_F(GuardsTest, KeysThatPrintAlikeAreMarkedInTheirOrder) {
  Exec("keys = [('a' * 200, i) for i in range(40)]\nx = {k: (k[1], k) for k in keys}");
  GuardRecorder r(WorldState::Now());
  const SourceId x = Arg(r, "x");
  std::vector<SourceId> below;
  for (int i = 0; i < 40; ++i) {
    const SourceId at = KeyOf(r, x, Eval("keys[" + std::to_string(i) + "]").get());
    below.push_back(ItemOf(r, at, 0));
    r.Value(below.back(), kHere);
  }
  const std::string first = r.Name(below[0]);
  ASSERT_EQ(first.substr(first.size() - 5), "\"][0]");
  const std::string stem = first.substr(0, first.size() - 5);
  auto tree = PlantTree(r.Freeze({}));
  const SourceTable table = tree->Sources();
  for (size_t i = 0; i < below.size(); ++i) {
    const std::string mark = i == 0 ? "" : i == 1 ? "'" : "'" + std::to_string(i);
    EXPECT_EQ(table.Name(below[i]), stem + mark + "\"][0]");
    EXPECT_EQ(NameOf(tree->frozen().steps, below[i]), table.Name(below[i]));
  }
  // A miss names its place alone.
  Exec("x[keys[21]] = (3, 4)");
  EXPECT_EQ(tree->Explain(Now()).source, table.Name(below[21]));
}

}  // namespace
}  // namespace frametap
