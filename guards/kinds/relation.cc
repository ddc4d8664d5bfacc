#include "guards/kinds/relation.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "guards/kinds/guard.h"
#include "guards/objects/value.h"
#include "ir/dcheck.h"

namespace frametap {

namespace {

// Returns false if it is neither an exact int of 64 bits nor a float.
bool NumberOf(const Reached& at, Number* out) {
  PyObject* o = at.object;
  if (o == nullptr) {
    *out = Number::Int(at.number);
  } else if (PyLong_CheckExact(o) || PyBool_Check(o)) {
    int overflow = 0;
    *out = Number::Int(PyLong_AsLongLongAndOverflow(o, &overflow));
    return overflow == 0;
  } else if (PyFloat_CheckExact(o)) {
    *out = Number::Float(PyFloat_AS_DOUBLE(o));
  } else {
    return false;
  }
  return true;
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
  *out = n.as_float();
  return n.is_float || (n.i >= -kExact && n.i <= kExact);
}

// Returns false if it cannot be decided exactly.
bool Compares(const Number& a, int op, const Number& b, bool* outcome) {
  if (!a.is_float && !b.is_float) {
    *outcome = Compare(a.i, op, b.i);
    return true;
  }
  double x, y;
  if (!ToDouble(a, &x) || !ToDouble(b, &y)) return false;
  *outcome = Compare(x, op, y);
  return true;
}

// The names of comparisons, and the forms that say that one holds or does not.
constexpr const char* kOpNames[] = {"<", "<=", "==", "!=", ">", ">="};
constexpr Predicate::Form kHoldForms[] = {Predicate::Form::kLess,  Predicate::Form::kAtMost,
                                          Predicate::Form::kEqual, Predicate::Form::kUnequal,
                                          Predicate::Form::kMore,  Predicate::Form::kAtLeast};
constexpr Predicate::Form kFailForms[] = {Predicate::Form::kNotLess,  Predicate::Form::kNotAtMost,
                                          Predicate::Form::kNotEqual, Predicate::Form::kNotUnequal,
                                          Predicate::Form::kNotMore,  Predicate::Form::kNotAtLeast};
static_assert(Py_LT == 0 && Py_LE == 1 && Py_EQ == 2 && Py_NE == 3 && Py_GT == 4 && Py_GE == 5);

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
        is_number_(NumberOf(Reached::Object(constant), &number_)),
        text_(ShortRepr(constant)) {
    FT_DCHECK(op >= Py_LT && op <= Py_GE);
  }

  Scope scope() const override { return type_ != nullptr ? Scope::kBinding : Scope::kContent; }

  bool Holds(const Reached& at) const override {
    if ((at.object != nullptr ? Py_TYPE(at.object) : nullptr) != type_) return false;
    Number number;
    bool outcome;
    return is_number_ && NumberOf(at, &number) && Compares(number, op_, number_, &outcome) && outcome == outcome_;
  }

  Predicate Want() const override {
    if (outcome_) return {kHoldForms[op_], text_};
    // `not (x < 2.0)` is not `x >= 2.0` for a nan.
    const bool ints = is_number_ && !number_.is_float && type_ != &PyFloat_Type;
    return {ints ? kHoldForms[Negated(op_)] : kFailForms[op_], text_};
  }

  std::string Why(const Reached& at) const override { return absl::StrCat("not ", Got(at), " ", ToString(Want())); }

 private:
  PyTypeObject* type_;  // int, bool, float, or null for a number without an object: never freed
  int op_;
  bool outcome_;
  Number number_;
  bool is_number_;
  std::string text_;
};

}  // namespace

NumbersRelation::NumbersRelation(NumberExpr left, int py_compare_op, NumberExpr right, bool outcome,
                                 const std::vector<Reached>& seen)
    : left_(std::move(left)), right_(std::move(right)), op_(py_compare_op), outcome_(outcome) {
  of_sizes_ = !left_.has_floats() && !right_.has_floats();
  for (const Reached& at : seen) {
    types_.push_back(at.object != nullptr ? Py_TYPE(at.object) : nullptr);
    of_sizes_ = of_sizes_ && at.object == nullptr;
  }
}

bool NumbersRelation::Holds(const Reached* const* at) const {
  if (of_sizes_) {
    int64_t sizes[kMostInputs], left, right;
    for (size_t i = 0; i < types_.size(); ++i) {
      if (at[i]->object != nullptr) return false;
      sizes[i] = at[i]->number;
    }
    return left_.EvaluateInts(sizes, &left) && right_.EvaluateInts(sizes, &right) &&
           Compare(left, op_, right) == outcome_;
  }
  Number inputs[kMostInputs];
  for (size_t i = 0; i < types_.size(); ++i) {
    if ((at[i]->object != nullptr ? Py_TYPE(at[i]->object) : nullptr) != types_[i]) return false;
    if (!NumberOf(*at[i], &inputs[i])) return false;
  }
  Number a, b;
  bool outcome;
  return left_.Evaluate(inputs, &a) && right_.Evaluate(inputs, &b) && Compares(a, op_, b, &outcome) &&
         outcome == outcome_;
}

std::string NumbersRelation::Want(const std::vector<std::string>& names) const {
  bool floats = false;
  for (const PyTypeObject* type : types_) floats = floats || type == &PyFloat_Type;
  const bool negated = !outcome_ && !floats && !left_.has_floats() && !right_.has_floats();
  return absl::StrCat(outcome_ || negated ? "" : "not ", left_.Text(names), " ", kOpNames[negated ? Negated(op_) : op_],
                      " ", right_.Text(names));
}

std::string NumbersRelation::Got(const Reached* const* at, const std::vector<std::string>& names) const {
  std::string text;
  for (size_t i = 0; i < types_.size(); ++i) {
    Number number;
    absl::StrAppend(&text, i == 0 ? "" : ", ", names[i], " = ",
                    NumberOf(*at[i], &number) ? ToString(number) : ShortRepr(at[i]->object));
  }
  return text;
}

std::unique_ptr<Guard> MakeRelationGuard(const Reached& at, int py_compare_op, PyObject* constant, bool outcome) {
  return std::make_unique<RelationGuard>(at, py_compare_op, constant, outcome);
}

}  // namespace frametap
