// builtins, math, operator, itertools, functools, str, int, float and friends.
#include <cstring>

#include "frame_eval/callables/table.h"
#include "frame_eval/known_objects.h"
#include "guards/tensor_door.h"

namespace frametap {
namespace {

// isinstance(x, C), type(x): read the exact type; the guard of a source's type says it all.
void ReadsType(Recorder& r, Call& call) {
  for (size_t i = 0; i < call.args.size(); ++i) {
    PyObject* object = call.args[i];
    if (Recorder::IsScalar(object)) {
      r.Force(object, call.shadows[i]);
    } else if (PyTuple_CheckExact(object) && i == 1) {
      r.ForceDeep(object, call.shadows[i], true);
    } else if (!IsTensor(object)) {
      r.Touch(object);
    }
  }
  if (PyType_Check(call.callable) && call.args.size() != 1) throw Break{Reason::class_statement, ""};
}

void Len(Recorder& r, Call& call) {
  PyObject* object = call.args.empty() ? nullptr : call.args[0];
  if (object == nullptr) return;
  if (IsTensor(object)) return r.TorchCall(call.note, &call, "len");
  Known* known = r.Find(object);
  bool sized = PyTuple_Check(object) || PyList_Check(object) || PyDict_Check(object) || PyAnySet_Check(object);
  if (sized && known != nullptr && known->state == Known::State::kSource && !known->adopted) {
    r.Touch(object);
    r.guards().Length(known->source, r.Here());
    return;
  }
  r.Force(object, call.shadows[0]);
  r.Touch(object);
}

void GetAttr(Recorder& r, Call& call) {
  if (call.args.size() < 2 || !PyUnicode_CheckExact(call.args[1])) return r.ForceDeep(call.callable, Shadow(), true);
  for (size_t i = 1; i < call.args.size(); ++i) r.Force(call.args[i], call.shadows[i]);
  Ref<> name = Ref<>::New(call.args[1]);
  PyObject* interned = name.Release();
  PyUnicode_InternInPlace(&interned);
  Ref<> keep = Ref<>::Steal(interned);
  r.LoadAttribute(call.note, call.args[0], call.shadows[0], interned);
  if (call.args.size() > 2 || std::strcmp(FindCallable(call.callable)->name, "hasattr") == 0) {
    // With a default the result may be that, or a bool: nothing is to be expected of it. Numbers are fixed.
    if (call.note.expect.kind == Expect::Kind::kSource) {
      SourceId source = call.note.expect.source;
      PyObject* seen = r.guards().seen(source);
      if (seen != nullptr) r.Force(seen, r.FromSource(source, seen, call.note.expect.pinned));
    }
    if (call.note.expect.kind == Expect::Kind::kShadow) throw Break{Reason::unknown_operation, "getattr"};
    call.note.expect = Expect();
  }
}

void SetAttr(Recorder& r, Call& call) {
  if (call.args.size() != 3 || !PyUnicode_CheckExact(call.args[1])) throw Break{Reason::unknown_mutation, "setattr"};
  r.Force(call.args[1], call.shadows[1]);
  PyObject* interned = call.args[1];
  Py_INCREF(interned);
  PyUnicode_InternInPlace(&interned);
  Ref<> keep = Ref<>::Steal(interned);
  r.StoreAttribute(call.note, call.args[0], interned, call.args[2], call.shadows[2]);
}

void DelAttr(Recorder& r, Call& call) {
  if (call.args.size() != 2 || !PyUnicode_CheckExact(call.args[1])) throw Break{Reason::unknown_mutation, "delattr"};
  r.Force(call.args[1], call.shadows[1]);
  PyObject* interned = Ref<>::New(call.args[1]).Release();
  PyUnicode_InternInPlace(&interned);
  Ref<> keep = Ref<>::Steal(interned);
  r.DeleteAttribute(call.note, call.args[0], interned);
}

// object.__setattr__(x, name, value), and super().__setattr__ bound to x.
void ObjectSetAttr(Recorder& r, Call& call) {
  if (call.args.size() != 3 || !PyUnicode_CheckExact(call.args[1])) throw Break{Reason::unknown_mutation, "setattr"};
  r.Force(call.args[1], call.shadows[1]);
  PyObject* interned = call.args[1];
  Py_INCREF(interned);
  PyUnicode_InternInPlace(&interned);
  Ref<> keep = Ref<>::Steal(interned);
  call.note.expect.kind = Expect::Kind::kNothing;
  if (!r.GenericStore(call.args[0], interned, call.args[2], call.shadows[2])) return;
}

// object.__getattribute__(x, name): the generic look-up, whatever the class overrides.
void ObjectGetAttr(Recorder& r, Call& call) {
  if (call.args.size() != 2 || !PyUnicode_CheckExact(call.args[1]) || IsTensor(call.args[0])) {
    throw Break{Reason::unknown_operation, "object.__getattribute__"};
  }
  r.Force(call.args[1], call.shadows[1]);
  r.GenericLoad(call.note, call.args[0], call.args[1]);
}

// module.__getattribute__(name)
void ModuleGetAttr(Recorder& r, Call& call) {
  if (call.args.size() != 2 || !PyUnicode_CheckExact(call.args[1]) || !PyModule_Check(call.args[0])) {
    throw Break{Reason::unknown_operation, "module.__getattribute__"};
  }
  r.Force(call.args[1], call.shadows[1]);
  PyObject* interned = Ref<>::New(call.args[1]).Release();
  PyUnicode_InternInPlace(&interned);
  Ref<> keep = Ref<>::Steal(interned);
  r.GenericLoad(call.note, call.args[0], interned);
}

// float(x), int(x), bool(x), abs, min, max, sum …: values; a tensor's value ends the segment.
void Number(Recorder& r, Call& call) {
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (IsTensor(call.args[i])) throw Break{Reason::value_of_tensor, CallableName(call.callable)};
    r.ForceDeep(call.args[i], call.shadows[i], false);
  }
}

void TruthValue(Recorder& r, Call& call) {
  if (call.args.size() == 1) r.TruthOf(call.note, call.args[0], call.shadows[0]);
}

// sum, abs, round, pow, divmod: plain numbers, or tensors through their operators.
void Arithmetic(Recorder& r, Call& call) {
  bool tensors = false;
  for (PyObject* arg : call.args) {
    tensors = tensors || IsTensor(arg);
    if (PyTuple_Check(arg) || PyList_Check(arg)) {
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(arg); ++i) {
        tensors = tensors || IsTensor(PySequence_Fast_GET_ITEM(arg, i));
      }
    }
  }
  if (tensors) return r.TorchCall(call.note, &call, "");
  for (size_t i = 0; i < call.args.size(); ++i) r.ForceDeep(call.args[i], call.shadows[i], true);
}

// super(): reads the frame's own class cell and first argument, both of the recording.
void Super(Recorder& r, Call& call) {
  for (PyObject* arg : call.args) r.Touch(arg);
}

// next(iterator[, default])
void Next(Recorder& r, Call& call) {
  if (call.args.empty()) return;
  Known* known = r.Find(call.args[0]);
  if (known == nullptr || known->state == Known::State::kSource) {
    throw Break{Reason::unknown_operation, "an iterator that existed before"};
  }
  r.MarkMutated(call.args[0]);
  for (size_t i = 1; i < call.args.size(); ++i) r.Force(call.args[i], call.shadows[i]);
}

void Iterate(Recorder& r, Call& call) {
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (IsTensor(call.args[i])) r.ReadTensor(call.args[i], true, false);
    r.ForceDeep(call.args[i], call.shadows[i], true);
  }
}

// set(…), frozenset(…), dict(…)
void MakeTable(Recorder& r, Call& call) {
  Iterate(r, call);
  r.ReadIdentities(Reads::kKeys, call);
}

// ContextVar.get([default]), .set(value), .reset(token). A variable that is reset again by the end leaves no trace.
void ContextGet(Recorder& r, Call& call) {
  PyObject* variable = call.args.empty() ? nullptr : call.args[0];
  if (variable == nullptr || !PyContextVar_CheckExact(variable))
    throw Break{Reason::unknown_callable, "ContextVar.get"};
  for (size_t i = 1; i < call.args.size(); ++i) r.Force(call.args[i], call.shadows[i]);
  if (r.ContextVariableSet(variable)) return;
  PyObject* value = nullptr;
  if (PyContextVar_Get(variable, Py_NotImplemented, &value) < 0) {
    PyErr_Clear();
    throw Break{Reason::unknown_callable, "ContextVar.get"};
  }
  Ref<> keep = Ref<>::Steal(value);
  SourceId source = r.guards().Child(r.SourceOrPin(variable), Accessor::kContextValue, 0, nullptr, value);
  if (value != Py_NotImplemented) {
    call.note.expect.kind = Expect::Kind::kSource;
    call.note.expect.source = source;
    return;
  }
  r.guards().Identity(source, r.Here());
}

void ContextSet(Recorder& r, Call& call) {
  if (call.args.size() != 2 || !PyContextVar_CheckExact(call.args[0]))
    throw Break{Reason::unknown_callable, "ContextVar"};
  r.Force(call.args[1], call.shadows[1]);
  r.Touch(call.args[0]);
  r.CountContextVariable(call.args[0], 1);
}

void ContextReset(Recorder& r, Call& call) {
  Known* token = call.args.size() == 2 ? r.Find(call.args[1]) : nullptr;
  if (token == nullptr || token->state == Known::State::kSource) {
    throw Break{Reason::unknown_callable, "ContextVar.reset of a token that existed before"};
  }
  r.CountContextVariable(call.args[0], -1);
}

// id(x): the same for the same object, so the object is fixed. (That of a new object differs from run to run, and an
// object that the program made for this call must not be held until the next.)
void ObjectId(Recorder& r, Call& call) {
  Known* known = call.args.size() == 1 ? r.Find(call.args[0]) : nullptr;
  if (known != nullptr && known->state == Known::State::kSource) r.Touch(call.args[0]);
  if (known == nullptr || !known->pinned) throw Break{Reason::unknown_callable, "id"};
}

// dict.__setitem__ and list.__setitem__, also through super().
void SetItem(Recorder& r, Call& call) {
  if (call.args.size() != 3) throw Break{Reason::unknown_mutation, "__setitem__"};
  for (size_t i = 1; i < 3; ++i) r.Force(call.args[i], call.shadows[i]);
  Known* known = r.Find(call.args[0]);
  bool is_source = known == nullptr || known->state == Known::State::kSource;
  if (is_source && !PyDict_CheckExact(call.args[0])) throw Break{Reason::unknown_mutation, "__setitem__"};
  r.Own(call.args[0]);
  if (is_source) {
    r.AddEffect(Effect::Kind::kSetItem, call.args[0], "", {call.args[1], call.args[2]}, {Shadow(), Shadow()});
  }
}

// Python functions whose result follows from which function or class they are given: not watched, only kept.
void OpaqueFunction(Recorder& r, Call& call) {
  for (size_t i = 0; i < call.args.size(); ++i) r.ForceDeep(call.args[i], call.shadows[i], false);
  call.note.opaque_operation = true;
}

// x.__contains__(item), operator.contains(x, item)
void Contains(Recorder& r, Call& call) {
  if (call.args.size() != 2) throw Break{Reason::unknown_operation, "__contains__"};
  r.Force(call.args[1], call.shadows[1]);
  r.Contains(call.note, call.args[0], call.args[1]);
}

// operator.is_, operator.is_not
void Is(Recorder& r, Call& call) {
  if (call.args.size() == 2) r.CompareIdentity(call.args[0], call.shadows[0], call.args[1], call.shadows[1]);
}

template <int py_compare_op>
void Compare(Recorder& r, Call& call) {
  if (call.args.size() != 2) throw Break{Reason::unknown_operation, "a comparison"};
  r.CompareValues(call.note, call.args[0], call.shadows[0], call.args[1], call.shadows[1], py_compare_op);
}

void ObjectInit(Recorder&, Call&) {}

void ObjectNew(Recorder& r, Call& call) {
  for (size_t i = 0; i < call.args.size(); ++i) r.ForceDeep(call.args[i], call.shadows[i], true);
}

void Special(const char* module, const char* path, const char* name, SpecialRow row) {
  Ref<> owner = Ref<>::Steal(PyImport_ImportModule(module));
  if (owner && path[0] != '\0') owner = Ref<>::Steal(PyObject_GetAttrString(owner.get(), path));
  Ref<> callable = owner ? Ref<>::Steal(PyObject_GetAttrString(owner.get(), name)) : Ref<>();
  AddRow(callable.get(), {name, Conduct::kSpecial, row});
}

}  // namespace

void LoadBuiltins() {
  AddRows("builtins", "", Conduct::kPure,
          {"bin", "chr", "hex", "oct", "ord", "range", "slice", "bytes", "bytearray", "complex"});
  AddRows("builtins", "", Conduct::kPure, {"ascii", "repr"}, Reads::kRepr);
  AddRows("builtins", "", Conduct::kPure, {"format", "str"}, Reads::kStr);
  AddRows("builtins", "", Conduct::kPure, {"hash"}, Reads::kHash);
  AddRows("builtins", "", Conduct::kPureObjects, {"callable", "issubclass", "classmethod", "staticmethod", "property"});
  AddRows("builtins", "", Conduct::kTransparent, {"any", "all", "map", "filter"});
  AddRows("builtins", "", Conduct::kTransparent, {"sorted", "min", "max"}, Reads::kKeys);
  for (const char* name : {"isinstance", "type"}) Special("builtins", "", name, ReadsType);
  for (const char* name : {"getattr", "hasattr"}) Special("builtins", "", name, GetAttr);
  for (const char* name : {"int", "float"}) Special("builtins", "", name, Number);
  for (const char* name : {"abs", "round", "pow", "divmod", "sum"}) Special("builtins", "", name, Arithmetic);
  for (const char* name : {"set", "frozenset", "dict"}) Special("builtins", "", name, MakeTable);
  for (const char* name : {"iter", "list", "tuple", "zip", "enumerate", "reversed"}) {
    Special("builtins", "", name, Iterate);
  }
  Special("builtins", "", "len", Len);
  Special("builtins", "", "id", ObjectId);
  Special("contextvars", "ContextVar", "get", ContextGet);
  Special("contextvars", "ContextVar", "set", ContextSet);
  Special("contextvars", "ContextVar", "reset", ContextReset);
  for (const char* owner : {"dict", "list"}) Special("builtins", owner, "__setitem__", SetItem);
  Special("collections", "OrderedDict", "__setitem__", SetItem);
  Special("inspect", "", "signature", OpaqueFunction);
  Special("builtins", "frozenset", "__contains__", Contains);
  Special("builtins", "set", "__contains__", Contains);
  Special("builtins", "dict", "__contains__", Contains);
  AddRows("sys", "", Conduct::kPureObjects, {"getrecursionlimit", "getsizeof", "intern", "is_finalizing"});
  Special("builtins", "", "setattr", SetAttr);
  Special("builtins", "", "delattr", DelAttr);
  for (const char* name : {"__instancecheck__", "__subclasscheck__"}) Special("builtins", "type", name, ReadsType);
  Special("builtins", "", "bool", TruthValue);
  Special("builtins", "", "super", Super);
  Special("builtins", "", "next", Next);
  Special("builtins", "object", "__setattr__", ObjectSetAttr);
  Special("builtins", "object", "__getattribute__", ObjectGetAttr);
  Special("types", "ModuleType", "__getattribute__", ModuleGetAttr);
  Special("builtins", "object", "__init__", ObjectInit);
  Special("builtins", "object", "__new__", ObjectNew);
  Special("builtins", "tuple", "__new__", ObjectNew);
  AddRows("builtins", "object", Conduct::kPureObjects, {"__init_subclass__"});
  AddRows("builtins", "object", Conduct::kPureObjects, {"__eq__", "__ne__"}, Reads::kEqual);

  AddRows("builtins", "str", Conduct::kPure,
          {"capitalize",   "casefold", "center",     "count",       "encode",    "endswith",   "expandtabs",
           "find",         "index",    "isalnum",    "isalpha",     "isascii",   "isdecimal",  "isdigit",
           "isidentifier", "islower",  "isnumeric",  "isprintable", "isspace",   "istitle",    "isupper",
           "join",         "ljust",    "lower",      "lstrip",      "maketrans", "partition",  "removeprefix",
           "removesuffix", "replace",  "rfind",      "rindex",      "rjust",     "rpartition", "rsplit",
           "rstrip",       "split",    "splitlines", "startswith",  "strip",     "swapcase",   "title",
           "translate",    "upper",    "zfill"});
  AddRows("builtins", "str", Conduct::kPure, {"format", "format_map"}, Reads::kStr);
  AddRows("builtins", "int", Conduct::kPure,
          {"bit_length", "bit_count", "conjugate", "to_bytes", "from_bytes", "as_integer_ratio"});
  AddRows("builtins", "float", Conduct::kPure, {"is_integer", "hex", "fromhex", "as_integer_ratio", "conjugate"});
  AddRows("builtins", "bytes", Conduct::kPure, {"decode", "hex", "join", "split", "startswith", "endswith"});
  AddRows("builtins", "slice", Conduct::kPure, {"indices"});
  AddRows("builtins", "range", Conduct::kPure, {"index", "count"});

  AddRows(
      "math", "", Conduct::kPure,
      {"acos",     "acosh",     "asin",      "asinh",   "atan",  "atan2", "atanh",   "cbrt",      "ceil",  "comb",
       "copysign", "cos",       "cosh",      "degrees", "dist",  "erf",   "erfc",    "exp",       "exp2",  "expm1",
       "fabs",     "factorial", "floor",     "fmod",    "frexp", "fsum",  "gamma",   "gcd",       "hypot", "isclose",
       "isfinite", "isinf",     "isnan",     "isqrt",   "lcm",   "ldexp", "lgamma",  "log",       "log10", "log1p",
       "log2",     "modf",      "nextafter", "perm",    "pow",   "prod",  "radians", "remainder", "sin",   "sinh",
       "sqrt",     "tan",       "tanh",      "trunc",   "ulp"});
  for (const char* name :
       {"add", "sub", "mul", "truediv", "floordiv", "mod", "neg", "pos", "matmul", "and_", "or_", "xor", "invert"}) {
    Special("_operator", "", name, Arithmetic);
  }
  Special("_operator", "", "lt", Compare<Py_LT>);
  Special("_operator", "", "le", Compare<Py_LE>);
  Special("_operator", "", "eq", Compare<Py_EQ>);
  Special("_operator", "", "ne", Compare<Py_NE>);
  Special("_operator", "", "gt", Compare<Py_GT>);
  Special("_operator", "", "ge", Compare<Py_GE>);
  for (const char* name : {"is_", "is_not"}) Special("_operator", "", name, Is);
  Special("_operator", "", "contains", Contains);
  AddRows("_operator", "", Conduct::kPure, {"countOf", "indexOf"}, Reads::kSearch);
  AddRows("_operator", "", Conduct::kPure, {"index", "concat", "length_hint"});
  AddRows("itertools", "", Conduct::kTransparent,
          {"accumulate", "chain", "combinations", "compress", "count", "cycle", "dropwhile", "filterfalse", "groupby",
           "islice", "pairwise", "permutations", "product", "repeat", "starmap", "takewhile", "zip_longest"});
  AddRows("_functools", "", Conduct::kTransparent, {"reduce"});
  AddRows("_functools", "", Conduct::kPureObjects, {"partial"});
  AddRows("_abc", "", Conduct::kPureObjects, {"_abc_instancecheck", "_abc_subclasscheck"});
}

}  // namespace frametap
