#include "ir/symbols/formula.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "ir/graph/builtin_op.h"
#include "ir/symbols/simplifier.h"

namespace frametap {

// A symbol, or `op` of formulas that no rule takes apart.
struct Formula::Atom {
  std::string text;
  bool natural = false;
  bool is_quotient = false;  // `a//b`, `a % b`: binds as a product does
  size_t nodes = 1;
  BuiltinOp op = BuiltinOp::kNone;
  Formula a, b;
};

namespace {

bool Multiplies(int64_t a, int64_t b, int64_t* out) { return !__builtin_mul_overflow(a, b, out); }

}  // namespace

Formula Formula::Constant(int64_t value) {
  Formula out;
  if (value != 0) out.terms_.push_back({value, {}});
  return out;
}

Formula Formula::Symbol(std::string name, bool natural) {
  auto atom = std::make_shared<Atom>();
  atom->text = std::move(name);
  atom->natural = natural;
  Formula out;
  out.terms_.push_back({1, {std::move(atom)}});
  return out;
}

std::optional<int64_t> Formula::constant() const {
  if (terms_.empty()) return 0;
  if (terms_.size() == 1 && terms_[0].atoms.empty()) return terms_[0].factor;
  return std::nullopt;
}

const Formula::Atom* Formula::only_atom() const {
  return terms_.size() == 1 && terms_[0].factor == 1 && terms_[0].atoms.size() == 1 ? terms_[0].atoms[0].get()
                                                                                    : nullptr;
}

bool operator==(const Formula& a, const Formula& b) {
  const auto same_atom = [](const Formula::AtomPtr& x, const Formula::AtomPtr& y) { return x->text == y->text; };
  return std::equal(a.terms_.begin(), a.terms_.end(), b.terms_.begin(), b.terms_.end(),
                    [&](const Formula::Term& x, const Formula::Term& y) {
                      return x.factor == y.factor &&
                             std::equal(x.atoms.begin(), x.atoms.end(), y.atoms.begin(), y.atoms.end(), same_atom);
                    });
}

bool Formula::natural() const {
  return std::all_of(terms_.begin(), terms_.end(), [](const Term& term) {
    return term.factor > 0 &&
           std::all_of(term.atoms.begin(), term.atoms.end(), [](const AtomPtr& atom) { return atom->natural; });
  });
}

// Sums and products have a normal form, so the simplifier is not shown their operands.
struct Formula::Terms {
  using Term = Formula;

  static Formula Constant(int64_t value) { return Formula::Constant(value); }
  static std::optional<int64_t> ConstantOf(const Formula& f) { return f.constant(); }
  static bool IsNatural(const Formula& f) { return f.natural(); }
  static std::optional<std::pair<Formula, Formula>> OperandsOf(BuiltinOp op, const Formula& f) {
    const Atom* atom = f.only_atom();
    return atom != nullptr && atom->op == op ? std::optional(std::pair(atom->a, atom->b)) : std::nullopt;
  }
  static std::optional<Formula> Make(BuiltinOp op, const Formula& a, const Formula& b) {
    switch (op) {
      case BuiltinOp::kIntAdd:
        return Sum(a, b, 1);
      case BuiltinOp::kIntSub:
        return Sum(a, b, -1);
      case BuiltinOp::kIntNeg:
        return Sum(Formula(), a, -1);
      case BuiltinOp::kIntMul:
        return Product(a, b);
      case BuiltinOp::kIntFloorDiv:
        return FloorDiv(a, b);
      case BuiltinOp::kIntMod:
        return Mod(a, b);
      case BuiltinOp::kIntMin:
      case BuiltinOp::kIntMax:
        return Extreme(op, a, b);
      default:
        return Opaque(op, a, b);
    }
  }
};

std::optional<Formula> Formula::Of(BuiltinOp op, const Formula& a, const Formula& b) {
  const ScalarRow& row = RowOf(op);
  if (row.result != Type::Kind::kInt || row.operands != Type::Kind::kInt) return std::nullopt;
  Terms terms;
  return Simplifier(terms).Apply(op, a, b);
}

// ---- sums and products ----------------------------------------------------------------------------------------------

void Formula::Add(Term term, bool* overflow) {
  const auto before = [](const AtomPtr& x, const AtomPtr& y) { return x->text < y->text; };
  const auto less = [&](const Term& x, const Term& y) {
    return std::lexicographical_compare(x.atoms.begin(), x.atoms.end(), y.atoms.begin(), y.atoms.end(), before);
  };
  const auto at = std::lower_bound(terms_.begin(), terms_.end(), term, less);
  if (at == terms_.end() || less(term, *at)) {
    if (term.factor != 0) terms_.insert(at, std::move(term));
    return;
  }
  if (__builtin_add_overflow(at->factor, term.factor, &at->factor)) *overflow = true;
  if (at->factor == 0) terms_.erase(at);
}

std::optional<Formula> Formula::Sum(const Formula& a, const Formula& b, int64_t sign) {
  Formula out = a;
  bool overflow = false;
  for (Term term : b.terms_) {
    if (!Multiplies(term.factor, sign, &term.factor)) return std::nullopt;
    out.Add(std::move(term), &overflow);
  }
  return overflow ? std::nullopt : std::optional(out);
}

std::optional<Formula> Formula::Product(const Formula& a, const Formula& b) {
  constexpr size_t kMostTerms = 32;
  if (a.terms_.size() * b.terms_.size() > kMostTerms) return std::nullopt;
  Formula out;
  bool overflow = false;
  for (const Term& x : a.terms_) {
    for (const Term& y : b.terms_) {
      Term term;
      if (!Multiplies(x.factor, y.factor, &term.factor)) return std::nullopt;
      std::merge(x.atoms.begin(), x.atoms.end(), y.atoms.begin(), y.atoms.end(), std::back_inserter(term.atoms),
                 [](const AtomPtr& p, const AtomPtr& q) { return p->text < q->text; });
      out.Add(std::move(term), &overflow);
    }
  }
  return overflow ? std::nullopt : std::optional(out);
}

// ---- division -------------------------------------------------------------------------------------------------------

bool Formula::Split(const Formula& a, const Term& by, Formula* quotient, Formula* rest) {
  if (by.factor == std::numeric_limits<int64_t>::min() || by.factor == -1) return false;
  bool overflow = false;
  for (const Term& term : a.terms_) {
    Term left{term.factor / by.factor, term.atoms};
    bool divides = term.factor % by.factor == 0;
    for (const AtomPtr& atom : by.atoms) {
      const auto it = std::find_if(left.atoms.begin(), left.atoms.end(),
                                   [&](const AtomPtr& other) { return other->text == atom->text; });
      divides = divides && it != left.atoms.end();
      if (!divides) break;
      left.atoms.erase(it);
    }
    (divides ? quotient : rest)->Add(divides ? std::move(left) : term, &overflow);
  }
  return !overflow;
}

// The divisor of all terms of both that is positive where the quotient has a value: (c*a)//(c*b) is a//b.
bool Formula::Cancel(Formula* a, Formula* b) {
  Term common{0, {}};
  for (const Term& term : a->terms_) common.factor = std::gcd(common.factor, term.factor);
  common.factor = std::gcd(common.factor, b->terms_[0].factor);
  if (common.factor <= 0) return false;  // -2**63
  for (const AtomPtr& atom : b->terms_[0].atoms) {
    if (!atom->natural) continue;
    Term with = common;
    with.atoms.push_back(atom);
    Formula quotient, rest;
    if (Split(*a, with, &quotient, &rest) && rest.terms_.empty()) common = std::move(with);
  }
  if (common.factor == 1 && common.atoms.empty()) return false;
  Formula dividend, divisor, none;
  if (!Split(*a, common, &dividend, &none) || !Split(*b, common, &divisor, &none)) return false;
  *a = std::move(dividend);
  *b = std::move(divisor);
  return true;
}

// (k*q + r)//k is q + r//k.
std::optional<Formula> Formula::FloorDiv(const Formula& dividend, const Formula& divisor) {
  Formula a = dividend, b = divisor;
  if (b.constant() == 0) return std::nullopt;
  if (b.terms_.size() != 1) return Opaque(BuiltinOp::kIntFloorDiv, a, b);
  const bool is_reduced = Cancel(&a, &b);
  Formula quotient, rest;
  if (!Split(a, b.terms_[0], &quotient, &rest)) return Opaque(BuiltinOp::kIntFloorDiv, a, b);
  if (rest.terms_.empty()) return quotient;
  if (!is_reduced && quotient.terms_.empty()) return Opaque(BuiltinOp::kIntFloorDiv, a, b);
  const std::optional<Formula> left = Of(BuiltinOp::kIntFloorDiv, rest, b);
  return left ? Sum(quotient, *left, 1) : std::nullopt;
}

// (k*q + r) % k is r % k, and so is (k*q + r % k) % k.
std::optional<Formula> Formula::Mod(const Formula& a, const Formula& b) {
  if (b.constant() == 0) return std::nullopt;
  for (const Term& term : a.terms_) {
    if (term.atoms.size() != 1 || term.atoms[0]->op != BuiltinOp::kIntMod || !(term.atoms[0]->b == b)) continue;
    Formula remainder;
    remainder.terms_.push_back(term);
    const std::optional<Formula> dividend = Product(Constant(term.factor), term.atoms[0]->a);
    const std::optional<Formula> others = Sum(a, remainder, -1);
    const std::optional<Formula> all = dividend && others ? Sum(*others, *dividend, 1) : std::nullopt;
    return all ? Of(BuiltinOp::kIntMod, *all, b) : std::nullopt;
  }
  if (b.terms_.size() != 1) return Opaque(BuiltinOp::kIntMod, a, b);
  Formula quotient, rest;
  if (!Split(a, b.terms_[0], &quotient, &rest)) return Opaque(BuiltinOp::kIntMod, a, b);
  if (rest.terms_.empty()) return Formula();
  return quotient.terms_.empty() ? Opaque(BuiltinOp::kIntMod, a, b) : Of(BuiltinOp::kIntMod, rest, b);
}

// ---- the rest -------------------------------------------------------------------------------------------------------

// Returns whether a <= b for all values of the symbols, or false if that is unknown.
bool Formula::IsAtMost(const Formula& a, const Formula& b) {
  const std::optional<Formula> difference = Sum(b, a, -1);
  if (difference && difference->natural()) return true;
  const Atom* atom = a.only_atom();
  if (atom == nullptr) return false;
  if (atom->op == BuiltinOp::kIntMin) return IsAtMost(atom->a, b) || IsAtMost(atom->b, b);
  return atom->op == BuiltinOp::kIntFloorDiv && atom->b.constant().value_or(0) > 0 && atom->a.natural() &&
         IsAtMost(atom->a, b);
}

std::optional<Formula> Formula::Extreme(BuiltinOp op, const Formula& a, const Formula& b) {
  const bool least = op == BuiltinOp::kIntMin;
  if (IsAtMost(a, b)) return least ? a : b;
  if (IsAtMost(b, a)) return least ? b : a;
  return Opaque(op, a, b);
}

std::optional<Formula> Formula::Opaque(BuiltinOp op, const Formula& a, const Formula& b) {
  if (Commutes(op) && b.Text() < a.Text()) return Opaque(op, b, a);
  const ScalarRow& row = RowOf(op);
  auto atom = std::make_shared<Atom>();
  atom->op = op;
  atom->nodes = 1 + a.nodes() + (row.arity == 2 ? b.nodes() : 0);
  atom->natural = GivesNatural(op, a.natural(), b.natural());
  atom->a = a;
  atom->b = b;
  const auto operand = [](const Formula& f) { return f.is_factor() ? f.Text() : absl::StrCat("(", f.Text(), ")"); };
  const bool is_div = op == BuiltinOp::kIntFloorDiv, is_mod = op == BuiltinOp::kIntMod;
  if (is_div || is_mod) {
    atom->text = absl::StrCat(operand(a), is_div ? "//" : " % ", operand(b));
    atom->is_quotient = true;
  } else if (row.notation[0] == ' ' && row.arity == 2) {
    atom->text = absl::StrCat("(", operand(a), row.notation, operand(b), ")");
  } else if (row.arity == 2) {
    atom->text = absl::StrCat(row.notation, "(", a.Text(), ", ", b.Text(), ")");
  } else {
    atom->text = absl::StrCat(row.notation, "(", a.Text(), ")");
  }
  Formula out;
  out.terms_.push_back({1, {std::move(atom)}});
  return out;
}

// ---- text -----------------------------------------------------------------------------------------------------------

bool Formula::is_factor() const {
  if (constant()) return *constant() >= 0;
  return only_atom() != nullptr && !only_atom()->is_quotient;
}

std::string Formula::TextOf(const Term& term) {
  // -2**63 has no positive counterpart; unsigned arithmetic is right for it, too.
  const uint64_t factor =
      term.factor < 0 ? uint64_t{0} - static_cast<uint64_t>(term.factor) : static_cast<uint64_t>(term.factor);
  std::string out = term.atoms.empty() || factor != 1 ? absl::StrCat(factor) : "";
  const bool is_alone = term.atoms.size() == 1 && term.factor == 1;  // -a//b would be (-a)//b
  for (const AtomPtr& atom : term.atoms) {
    const bool in_parentheses = atom->is_quotient && !is_alone;
    absl::StrAppend(&out, out.empty() ? "" : "*", in_parentheses ? absl::StrCat("(", atom->text, ")") : atom->text);
  }
  return out;
}

size_t Formula::nodes() const {
  size_t nodes = terms_.empty() ? 1 : terms_.size() - 1;
  for (const Term& term : terms_) {
    const bool has_factor = term.factor != 1 && term.factor != -1;
    nodes += term.atoms.empty() ? 1 : term.atoms.size() - 1 + (has_factor ? 2 : 0);
    for (const AtomPtr& atom : term.atoms) nodes += atom->nodes;
  }
  return nodes;
}

// The added terms, the subtracted terms, the constant: `2*s0 - s1 + 1`; a constant stands first if nothing else is
// added.
std::string Formula::Text() const {
  std::vector<const Term*> order;
  for (const Term& term : terms_) {
    if (!term.atoms.empty() && term.factor > 0) order.push_back(&term);
  }
  const bool adds = !order.empty();
  for (const Term& term : terms_) {
    if (term.atoms.empty() && !adds && term.factor > 0) order.push_back(&term);
  }
  for (const Term& term : terms_) {
    if (!term.atoms.empty() && term.factor < 0) order.push_back(&term);
  }
  for (const Term& term : terms_) {
    if (term.atoms.empty() && (adds || term.factor < 0)) order.push_back(&term);
  }
  std::string out;
  for (const Term* term : order) {
    const char* sign = out.empty() ? (term->factor < 0 ? "-" : "") : term->factor < 0 ? " - " : " + ";
    absl::StrAppend(&out, sign, TextOf(*term));
  }
  return out.empty() ? "0" : out;
}

std::optional<int64_t> Formula::Evaluate(const Values& values) const {
  int64_t sum = 0;
  for (const Term& term : terms_) {
    int64_t product = term.factor;
    for (const AtomPtr& atom : term.atoms) {
      std::optional<int64_t> value;
      if (atom->op == BuiltinOp::kNone) {
        value = values(atom->text);
      } else if (const std::optional<int64_t> a = atom->a.Evaluate(values)) {
        const std::optional<int64_t> b = RowOf(atom->op).arity == 1 ? 0 : atom->b.Evaluate(values);
        if (b) value = ComputeInts(atom->op, *a, *b);
      }
      if (!value || !Multiplies(product, *value, &product)) return std::nullopt;
    }
    if (__builtin_add_overflow(sum, product, &sum)) return std::nullopt;
  }
  return sum;
}

}  // namespace frametap
