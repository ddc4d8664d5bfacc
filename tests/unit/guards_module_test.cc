// Modules: what may change between two calls, one thing at a time; and that unchanged dicts are not read again.
// Laws: standing/Q4, guard_tree/V3
#include <chrono>
#include <cstdio>
#include <functional>

#include "guards/cpython/watch.h"
#include "tests/unit/guards_fixture.h"

namespace frametap {
namespace {

const GuardSite kHere;

class GuardsModuleTest : public GuardsTest {
 protected:
  GuardsModuleTest() {
    Exec(R"(
scale = 2.0
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer('mask', torch.ones(3))
        self.calls = 0
    def forward(self, x): return self.linear(x) * self.mask
class Model(nn.Module):
    def __init__(self, n=2):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(n)])
        self.kinds = ['a', 'b']
        self.mode = 'mean'
        self.calls = 0
    def forward(self, x):
        for block in self.blocks: x = block(x)
        return x
model = Model()
)");
  }

  // Records one call of the module at `m`.
  void Called(GuardRecorder& r, SourceId m) {
    r.Type(m, kHere);
    r.Add(GuardKind::kNoHooks, m, kHere);
  }

  std::unique_ptr<GuardTree> Record(bool identity = false) {
    GuardRecorder r(WorldState::Now());
    const SourceId self = Arg(r, "model");
    if (identity) r.Identity(self, kHere);
    Called(r, self);
    r.Value(Attr(r, self, "mode"), kHere);
    const SourceId calls = Attr(r, self, "calls");
    r.Type(calls, kHere);
    const SourceId kinds = Attr(r, self, "kinds");
    r.Length(kinds, kHere);
    const SourceId blocks = ModuleAttr(r, self, "blocks");
    r.Type(blocks, kHere);
    const SourceId modules = Attr(r, blocks, "_modules");
    r.Keys(modules, kHere);
    wanted_ = {calls};
    const Py_ssize_t n = PyDict_GET_SIZE(r.seen(modules));
    for (Py_ssize_t i = 0; i < n; ++i) {
      const SourceId block = KeyOf(r, modules, Str(std::to_string(i).c_str()).get());
      Called(r, block);
      const SourceId linear = ModuleAttr(r, block, "linear");
      Called(r, linear);
      for (const SourceId tensor :
           {ModuleAttr(r, linear, "weight"), ModuleAttr(r, linear, "bias"), ModuleAttr(r, block, "mask")}) {
        r.Tensor(tensor, TensorRead(), kHere);
        wanted_.push_back(tensor);
      }
    }
    return PlantTree(r.Freeze(wanted_));
  }

  std::vector<SourceId> wanted_;
};

TEST_F(GuardsModuleTest, EveryMutationIsSeen) {
  const std::tuple<const char*, const char*, const char*> rows[] = {
      {"model.mode = 'sum'", "model.mode = 'mean'", "L.model.mode: attribute 'mode' is 'sum', was 'mean'"},
      {"model.kinds.append('c')", "model.kinds.pop()", "L.model.kinds: kinds: length: 3 != 2"},
      {"h = model.blocks[1].register_forward_hook(lambda *a: None)", "h.remove()",
       "L.model.blocks._modules[\"1\"]: _forward_hooks: a key was added"},
      {"d = model.__dict__; h = d['_backward_hooks']; d['_backward_hooks'] = OrderedDict({1: 2})",
       "d['_backward_hooks'] = h", "L.model: _backward_hooks: a key was added"},
      {"class Sub(OrderedDict): __bool__ = lambda self: True\nd['_forward_pre_hooks'] = Sub()",
       "d['_forward_pre_hooks'] = OrderedDict()", "L.model: attribute '_forward_pre_hooks' is not an OrderedDict"},
      {"del d['_backward_pre_hooks']", "d['_backward_pre_hooks'] = OrderedDict()",
       "L.model: attribute '_backward_pre_hooks' is missing"},
      {"model.blocks[0]._call_impl = len", "del model.blocks[0]._call_impl",
       "L.model.blocks._modules[\"0\"]: attribute '_call_impl' is present"},
      {"model._compiled_call_impl = None", "del model._compiled_call_impl",
       "L.model: attribute '_compiled_call_impl' is present"},
      {"model.blocks[0].forward = lambda x: x", "del model.blocks[0].forward",
       "L.model.blocks._modules[\"0\"]: attribute 'forward' is present"},
      {"model.blocks[0].__class__ = Model", "model.blocks[0].__class__ = Block",
       "L.model.blocks._modules[\"0\"]: type: Model != Block"},
      {"model.blocks[1].linear.weight.requires_grad_(False)", "model.blocks[1].linear.weight.requires_grad_(True)",
       "L.model.blocks._modules[\"1\"].linear.weight: requires_grad: no grad != requires grad"},
      {"model.double()", "model.float()", "L.model.blocks._modules[\"0\"].linear.weight: dtype: f64 != f32"},
      {"w = model.blocks[0].linear.weight; w.data = torch.zeros(3, dtype=torch.float16)", "w.data = torch.zeros(3, 3)",
       "L.model.blocks._modules[\"0\"].linear.weight: dtype: f16 != f32"},
      {"b = model.blocks[0].linear.bias; model.blocks[0].linear.bias = None", "model.blocks[0].linear.bias = b",
       "L.model.blocks._modules[\"0\"].linear.bias: type: NoneType != Parameter"},
      {"m = model.blocks[0].mask; del model.blocks[0].mask", "model.blocks[0].register_buffer('mask', m)",
       "L.model.blocks._modules[\"0\"].mask: attribute 'mask' is not in _buffers or is hidden by another"},
      {"model.blocks[0].__dict__['mask'] = 1", "del model.blocks[0].__dict__['mask']",
       "L.model.blocks._modules[\"0\"].mask: attribute 'mask' of the instance hides the module's"},
      {"model.blocks.append(Block())", "del model.blocks[2]", "L.model.blocks._modules: key '2' was added"},
      {"b = model.blocks; model.blocks = nn.ModuleList([b[0]])", "model.blocks = b",
       "L.model.blocks._modules: key '1' is missing"},
      {"d = model.blocks._modules; model.blocks._modules = {'1': d['1'], '0': d['0']}", "model.blocks._modules = d",
       "L.model.blocks._modules: the order of the keys has changed"},
      {"del model.calls", "model.calls = 0", "L.model.calls: attribute 'calls' is missing"},
      {"model.calls = 0.5", "model.calls = 1", "L.model.calls: type: float != int"},
  };
  for (const bool identity : {false, true}) {
    auto tree = Record(identity);
    ASSERT_TRUE(Hits(*tree));
    for (const auto& [change, back, why] : rows) {
      Exec(change);
      EXPECT_EQ(Why(*tree), why) << change;
      EXPECT_FALSE(Hits(*tree)) << change;  // a miss leaves no state that could be mistaken for a hit
      Exec(back);
      EXPECT_TRUE(Hits(*tree)) << back;
      EXPECT_TRUE(Hits(*tree)) << back;
    }
    Exec("model.train(False)");
    EXPECT_TRUE(Hits(*tree));  // `training` was not read
    Exec("model.train(True); model.blocks[1] = Block()");
    EXPECT_TRUE(Hits(*tree));  // another module of the same kind: everything that was read holds
    EXPECT_EQ(tree->Object(wanted_.back()), Eval("model.blocks[1].mask").get());
  }
  auto tree = Record();
  Exec("model = Model()");
  EXPECT_TRUE(Hits(*tree));
  Exec("Block.forward = lambda self, x: x");
  EXPECT_EQ(Why(*tree), "L.model.blocks._modules[\"0\"]: an attribute of Block or of one of its bases was changed");
}

TEST_F(GuardsModuleTest, MethodOfABaseClass) {
  auto tree = Record();
  ASSERT_TRUE(Hits(*tree));
  Exec("old = nn.Module._call_impl; nn.Module._call_impl = lambda self, *args: old(self, *args)");
  EXPECT_FALSE(Hits(*tree));
  Exec("nn.Module._call_impl = old");
  EXPECT_TRUE(Hits(*tree));  // a new version, and the same attributes
  Exec("old = nn.Module.train; nn.Module.train = lambda self, mode=True: old(self, mode)");
  EXPECT_TRUE(Hits(*tree));  // not read
  Exec("nn.Module.train = old");
  EXPECT_TRUE(Hits(*tree));
}

TEST_F(GuardsModuleTest, TensorsAreBoundAnew) {
  auto tree = Record();
  ASSERT_TRUE(Hits(*tree));
  Exec("model.blocks[0].linear.weight = nn.Parameter(torch.ones(3, 3))");
  ASSERT_TRUE(Hits(*tree));
  EXPECT_EQ(tree->Object(wanted_[1]), Eval("model.blocks[0].linear.weight").get());
  Exec("model.blocks[0].mask = torch.zeros(3)");
  ASSERT_TRUE(Hits(*tree));
  EXPECT_EQ(tree->Object(wanted_[3]), Eval("model.blocks[0].mask").get());
}

TEST_F(GuardsModuleTest, V3_UnchangedDictsAreNotReadAgain) {
  auto tree = Record();
  ASSERT_EQ(tree->Check(Now()), Verdict::kHit);
  const uint64_t first = tree->dict_reads();
  for (int i = 0; i < 10; ++i) ASSERT_EQ(tree->Check(Now()), Verdict::kHit);
  EXPECT_EQ(tree->dict_reads(), first);
  Exec("model.calls += 1");
  ASSERT_EQ(tree->Check(Now()), Verdict::kHit);
  EXPECT_EQ(tree->dict_reads(), first + 1);
  EXPECT_EQ(tree->Object(wanted_[0]), Eval("model.calls").get());
  Exec("with torch.no_grad():\n  for p in model.parameters(): p.add_(1)\nmodel.load_state_dict(model.state_dict())");
  ASSERT_EQ(tree->Check(Now()), Verdict::kHit);
  EXPECT_EQ(tree->dict_reads(), first + 1);
}

// While no dict changes, those that were seen are taken for unchanged. Everything else that may change is checked
// nevertheless.
TEST_F(GuardsModuleTest, Q4_ChangesThatTouchNoDictAreSeen) {
  Exec(R"(
block = model.blocks[0]
weight, bias = block.linear.weight, block.linear.bias
block_dict = block.__dict__
other_dict = {**block_dict, '_forward_hooks': OrderedDict({1: len})}
class Other(Block): pass
old, half = weight.data, torch.zeros(3, 3, dtype=torch.float16)
kinds = model.kinds
)");
  auto tree = Record();
  PyObject *block = Get("block"), *weight = Get("weight"), *bias = Get("bias");
  const auto set = [](PyObject* object, const char* name, PyObject* value) {
    return PyObject_SetAttrString(object, name, value) == 0;
  };
  const auto require_grad = [](PyObject* tensor, PyObject* on) {
    return bool{Ref<>::Steal(PyObject_CallMethod(tensor, "requires_grad_", "O", on))};
  };
  const std::tuple<const char*, std::function<bool()>, std::function<bool()>> rows[] = {
      {"dtype", [&] { return set(weight, "data", Get("half")); }, [&] { return set(weight, "data", Get("old")); }},
      {"requires_grad", [&] { return require_grad(bias, Py_False); }, [&] { return require_grad(bias, Py_True); }},
      {"class", [&] { return set(block, "__class__", Get("Other")); },
       [&] { return set(block, "__class__", Get("Block")); }},
      {"__dict__", [&] { return set(block, "__dict__", Get("other_dict")); },
       [&] { return set(block, "__dict__", Get("block_dict")); }},
      {"length", [&] { return PyList_Append(Get("kinds"), Py_None) == 0; },
       [&] { return PyList_SetSlice(Get("kinds"), 2, 3, nullptr) == 0; }},
  };
  const Roots roots = Now();
  for (const auto& [what, change, back] : rows) {
    for (int i = 0; i < 3; ++i) ASSERT_EQ(tree->Check(roots), Verdict::kHit) << what;
    const uint64_t epoch = DictEpoch();
    ASSERT_TRUE(change());
    EXPECT_EQ(DictEpoch(), epoch) << what;
    EXPECT_EQ(tree->Check(roots), Verdict::kMiss) << what;
    ASSERT_TRUE(back());
    EXPECT_EQ(tree->Check(roots), Verdict::kHit) << what;
  }
  for (int i = 0; i < 3; ++i) ASSERT_EQ(tree->Check(roots), Verdict::kHit);
  const uint64_t epoch = DictEpoch();
  PyObject_SetItem(Eval("block._forward_hooks").get(), Py_None, Py_None);
  EXPECT_NE(DictEpoch(), epoch);
  EXPECT_EQ(tree->Check(roots), Verdict::kMiss);
}

TEST_F(GuardsModuleTest, NothingOfTheArgumentsIsKept) {
  Exec("import weakref, gc\nx = {'t': torch.zeros(2)}\nalive = weakref.ref(x['t']), weakref.ref(model)");
  auto tree = Record();
  GuardRecorder r(WorldState::Now());
  const SourceId x = Arg(r, "x");
  const SourceId t = KeyOf(r, x, Str("t").get());
  r.Tensor(t, TensorRead(), kHere);
  auto second = PlantTree(r.Freeze({t}));
  EXPECT_TRUE(Hits(*tree));
  EXPECT_TRUE(Hits(*second));
  Exec("del x, model; gc.collect(); assert [a() for a in alive] == [None, None]");
  EXPECT_EQ(tree->Check(Now()), Verdict::kMiss);
  EXPECT_EQ(second->Check(Now()), Verdict::kMiss);
  Exec("x = {'t': torch.zeros(5)}; model = Model()");
  EXPECT_TRUE(Hits(*tree));
  EXPECT_TRUE(Hits(*second));
}

TEST_F(GuardsModuleTest, ReferencesAreGivenBack) {
  Exec("mode = model.mode = 'a string that nobody else has'");
  Exec(
      "import sys, gc\n"
      "watched = [model, model.blocks[0], Block, model.mode, model.blocks[0].linear.weight, model.__dict__]\n"
      "def counts(): return [sys.getrefcount(o) for o in watched]\n"
      "gc.collect(); before = counts()");
  for (int i = 0; i < 3; ++i) {
    auto tree = Record(true);
    EXPECT_TRUE(Hits(*tree));
    Exec("model.mode = 'other'");
    EXPECT_FALSE(Hits(*tree));
    Exec("model.mode = mode");
    EXPECT_TRUE(Hits(*tree));
  }
  Exec("gc.collect(); after = counts(); assert after == before, (before, after)");
}

TEST_F(GuardsModuleTest, TraverseVisitsWhatIsHeldAndTheModelIsNot) {
  auto tree = Record(true);
  std::vector<PyObject*> seen;
  const auto visit = [](PyObject* o, void* arg) {
    static_cast<std::vector<PyObject*>*>(arg)->push_back(o);
    return 0;
  };
  EXPECT_EQ(tree->Traverse(visit, &seen), 0);
  EXPECT_EQ(std::find(seen.begin(), seen.end(), Get("model")), seen.end());
  EXPECT_NE(std::find(seen.begin(), seen.end(), Get("Block")), seen.end());
}

TEST_F(GuardsModuleTest, FunctionsKeepTheirCodeAndDefaults) {
  Exec("def g(x, k=1): return x\ndef entry(x): return g(x)\nold = g");
  GuardRecorder r(WorldState::Now());
  const SourceId entry = r.Function(Get("entry"));
  r.Identity(r.Child(entry, Accessor::kGlobal, 0, Str("g").get(), Get("g")), kHere);
  r.Pinned(Get("old"), "lib.g");
  auto tree = PlantTree(r.Freeze({}));
  ASSERT_EQ(tree->Lines({}).size(), 2u);
  EXPECT_EQ(WantAt(*tree, 1), "is lib.g");
  ASSERT_TRUE(Hits(*tree));
  Exec("d = g.__defaults__; g.__defaults__ = (2,)");
  EXPECT_EQ(Why(*tree), "G.g: __defaults__ were replaced");
  Exec("g.__defaults__ = d; c = g.__code__; g.__code__ = (lambda x, k=1: 0).__code__");
  EXPECT_EQ(Why(*tree), "G.g: __code__ was replaced");
  Exec("g.__code__ = c; g.__kwdefaults__ = {}");
  EXPECT_EQ(Why(*tree), "G.g: __kwdefaults__ were replaced");
  Exec("g.__kwdefaults__ = None");
  EXPECT_TRUE(Hits(*tree));
  Exec("def g(x, k=1): return x");
  EXPECT_EQ(Why(*tree), "G.g: another object");
  Exec("g = old");
  EXPECT_TRUE(Hits(*tree));
}

TEST_F(GuardsModuleTest, PinnedObjectsAreWatched) {
  GuardRecorder r(WorldState::Now());
  const SourceId nn = r.Pinned(Eval("nn").get(), "torch.nn");
  const SourceId functional = Attr(r, nn, "functional");
  r.Identity(Attr(r, functional, "relu"), kHere);
  const SourceId model = r.Pinned(Get("model"), "model");
  r.Value(Attr(r, model, "mode"), kHere);
  auto tree = PlantTree(r.Freeze({}));
  EXPECT_EQ(WantAt(*tree, 0), "is torch.nn");  // its class could be assigned to
  EXPECT_EQ(WantAt(*tree, 1), "is torch.nn.functional.relu");
  ASSERT_TRUE(Hits(*tree));
  const uint64_t reads = tree->dict_reads();
  ASSERT_EQ(tree->Check(Now()), Verdict::kHit);
  EXPECT_EQ(tree->dict_reads(), reads);
  Exec("relu = nn.functional.relu; nn.functional.relu = len");
  EXPECT_EQ(Why(*tree), "torch.nn.functional.relu: another object");
  Exec("nn.functional.relu = relu; model.mode = 'sum'");
  EXPECT_EQ(Why(*tree), "model.mode: attribute 'mode' is 'sum', was 'mean'");
}

// Watched and slow evaluation agree (in Hits) whatever happens, in whatever order: objects die and addresses are
// reused.
TEST_F(GuardsModuleTest, RandomMutationsNeverMakeAWrongHit) {
  Exec(R"(
import random
rng = random.Random(0)
def mutate():
    b = model.blocks[rng.randrange(len(model.blocks))] if len(model.blocks) else None
    k = rng.randrange(18)
    if b is None or k == 0: model.blocks = nn.ModuleList([Block() for _ in range(rng.choice([1, 2, 2, 2, 3]))])
    elif k == 1: b.linear = nn.Linear(3, 3)
    elif k == 2: b.linear.weight = nn.Parameter(torch.zeros(3, 3), rng.random() < 0.7)
    elif k == 3: b.linear.weight.data = torch.zeros(3, 3)
    elif k == 4: b.mask = torch.zeros(3, dtype=rng.choice([torch.float32, torch.float32, torch.float64]))
    elif k == 5: model.calls += 1
    elif k == 6: model.calls = rng.choice([0, 1, 2**70, 0.5])
    elif k == 7: model.mode = rng.choice(['mean', 'mean', 'sum'])
    elif k == 8: model.kinds = ['x'] * rng.choice([2, 2, 1])
    elif k == 9: b.__dict__ = dict(b.__dict__)
    elif k == 10: globals().__setitem__('model', Model())
    elif k == 11: b.__dict__['_parameters'] = {}
    elif k == 12: b._forward_hooks = OrderedDict({1: len} if rng.random() < 0.3 else {})
    elif k == 13: b.__dict__['_buffers'] = collections.OrderedDict(b._buffers)
    elif k == 14: model.double() if rng.random() < 0.2 else model.float()
    elif k == 15: setattr(b, 'other%d' % rng.randrange(50), [])
    elif k == 16: model.blocks[0] = Block()
    elif k == 17: b.requires_grad_(rng.random() < 0.8)
def repair():
    globals().__setitem__('model', Model())
)");
  auto tree = Record();
  int hits = 0;
  for (int i = 0; i < 1500; ++i) {
    Exec(i % 7 == 0 ? "repair()" : "mutate()");
    hits += Hits(*tree);
  }
  EXPECT_GT(hits, 300);
  EXPECT_LT(hits, 1300);
}

// Not a test of time: prints what a check costs.
TEST_F(GuardsModuleTest, PrintsTheCostOfACheck) {
  for (const int blocks : {1, 10, 50, 100, 200}) {
    Exec("model = Model(" + std::to_string(blocks) + ")");
    const auto begin = std::chrono::steady_clock::now();
    auto tree = Record(true);
    const auto recorded = std::chrono::steady_clock::now();
    const Roots roots = Now();
    ASSERT_EQ(tree->Check(roots), Verdict::kHit);
    const auto time = [&](int rounds, auto&& body) {
      double best = 1e18;
      for (int round = 0; round < 20; ++round) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < rounds; ++i) body();
        const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
        best = std::min(best, spent.count() / rounds);
      }
      return best;
    };
    bool hit = true;
    const double check = time(200, [&] { hit &= tree->Check(roots) == Verdict::kHit; });
    Ref<> name = Str("calls");
    long n = 0;
    const double counted = time(200, [&] {
      Ref<> number = Int(++n);
      PyObject_SetAttr(Get("model"), name.get(), number.get());
      hit &= tree->Check(roots) == Verdict::kHit;
    });
    EXPECT_TRUE(hit);
    std::printf("%4d modules, %5zu predicates: check %7.0f ns, with a counter %7.0f ns, recording %5.0f us\n",
                2 * blocks + 2, tree->predicate_count(), check, counted,
                std::chrono::duration<double, std::micro>(recorded - begin).count());
  }
}

}  // namespace
}  // namespace frametap
