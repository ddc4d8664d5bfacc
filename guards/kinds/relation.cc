// Relation: how a number compares with a constant. Exact for 64-bit ints and for floats; whatever needs more is a miss.
#include <cmath>
#include <cstdlib>
#include <limits>

#include "absl/strings/str_cat.h"
#include "guards/guard.h"
#include "guards/kinds/value.h"

namespace frametap {

namespace {

struct Number {
  enum class Kind : uint8_t { kNone, kInt, kFloat } kind = Kind::kNone;
  int64_t i = 0;
  double f = 0;
};

Number NumberOf(const Reached& at) {
  Number n;
  PyObject* o = at.object;
  if (o == nullptr) {
    n.kind = Number::Kind::kInt;
    n.i = at.number;
  } else if (PyLong_CheckExact(o) || PyBool_Check(o)) {
    int overflow = 0;
    n.i = PyLong_AsLongLongAndOverflow(o, &overflow);
    if (overflow == 0) n.kind = Number::Kind::kInt;
  } else if (PyFloat_CheckExact(o)) {
    n.kind = Number::Kind::kFloat;
    n.f = PyFloat_AS_DOUBLE(o);
  }
  return n;
}

template <class T>
bool Compare(T a, int op, T b) {
  switch (op) {
    case Py_LT:
      return a < b;
    case Py_LE:
      return a <= b;
    case Py_EQ:
      return a == b;
    case Py_NE:
      return a != b;
    case Py_GT:
      return a > b;
    default:
      return a >= b;
  }
}

bool ToDouble(const Number& n, double* out) {
  constexpr int64_t kExact = int64_t{1} << std::numeric_limits<double>::digits;
  if (n.kind == Number::Kind::kFloat) {
    *out = n.f;
    return true;
  }
  *out = static_cast<double>(n.i);
  return n.i >= -kExact && n.i <= kExact;
}

// False if it cannot be told exactly.
bool Evaluate(const Number& a, int op, const Number& b, bool* outcome) {
  if (a.kind == Number::Kind::kNone || b.kind == Number::Kind::kNone) return false;
  if (a.kind == Number::Kind::kInt && b.kind == Number::Kind::kInt) {
    *outcome = Compare(a.i, op, b.i);
    return true;
  }
  double x, y;
  if (!ToDouble(a, &x) || !ToDouble(b, &y)) return false;
  *outcome = Compare(x, op, y);
  return true;
}

const char* OpName(int op) {
  static constexpr const char* kNames[] = {"<", "<=", "==", "!=", ">", ">="};
  return op >= 0 && op < 6 ? kNames[op] : "?";
}

int Negated(int op) {
  static constexpr int kNegated[] = {Py_GE, Py_GT, Py_NE, Py_EQ, Py_LE, Py_LT};
  return kNegated[op];
}

class RelationGuard : public Guard {
 public:
  RelationGuard(const Reached& at, int op, PyObject* constant, bool outcome)
      : Guard(Kind::kRelation),
        type_(at.object != nullptr ? Py_TYPE(at.object) : nullptr),
        op_(op),
        outcome_(outcome),
        number_(NumberOf(Reached::Object(constant))),
        text_(ShortRepr(constant)) {}

  Scope scope() const override { return type_ != nullptr ? Scope::kBinding : Scope::kContent; }

  bool Holds(const Reached& at) const override {
    if ((at.object != nullptr ? Py_TYPE(at.object) : nullptr) != type_) return false;
    bool outcome;
    return Evaluate(NumberOf(at), op_, number_, &outcome) && outcome == outcome_;
  }

  std::string Want() const override {
    if (outcome_) return absl::StrCat(OpName(op_), " ", text_);
    // `not (x < 2.0)` is not `x >= 2.0` for a nan.
    const bool ints = number_.kind == Number::Kind::kInt && type_ != &PyFloat_Type;
    return ints ? absl::StrCat(OpName(Negated(op_)), " ", text_) : absl::StrCat("not ", OpName(op_), " ", text_);
  }

  std::string Why(const Reached& at) const override { return absl::StrCat("not ", Got(at), " ", Want()); }

 private:
  PyTypeObject* type_;  // int, bool, float, or null for a number without an object: never freed
  int op_;
  bool outcome_;
  Number number_;
  std::string text_;
};

}  // namespace

std::unique_ptr<Guard> MakeRelationGuard(const Reached& at, int py_compare_op, PyObject* constant, bool outcome) {
  return std::make_unique<RelationGuard>(at, py_compare_op, constant, outcome);
}

}  // namespace frametap
