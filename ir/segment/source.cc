#include "ir/segment/source.h"

#include "absl/strings/str_cat.h"
#include "ir/graph/literal.h"
#include "ir/segment/frame_slot.h"
#include "ir/segment/predicate.h"

namespace frametap {
namespace {

constexpr std::string_view kAccessorWords[] = {
#define ACCESSOR(kind, word, text) word,
#include "ir/segment/accessors.def"
#undef ACCESSOR
};

constexpr std::string_view kTexts[] = {
#define ACCESSOR(kind, word, text) text,
#include "ir/segment/accessors.def"
#undef ACCESSOR
};

// Text that may stand in brackets as it is: one quoted word without quotes or escapes inside.
bool IsPlainQuoted(const std::string& text) {
  if (text.size() < 2 || (text[0] != '"' && text[0] != '\'') || text.back() != text[0]) return false;
  for (size_t i = 1; i + 1 < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' || c == '\'' || c == '\\' || static_cast<unsigned char>(c) < 0x20) return false;
  }
  return true;
}

// `.name`, or `.<attr>("odd name")` for one that a path could not show as it is.
std::string AttrText(const std::string& name) {
  return IsPathWord(name) ? "." + name : ".<attr>(" + Quoted(name) + ")";
}

// `L` of the entry frame, `L1` of its caller.
std::string FrameLetter(const char* letter, const Source& s) {
  return FrameOf(s.index) == 0 ? letter : absl::StrCat(letter, FrameOf(s.index));
}

// FNV-1a (Fowler, Noll, Vo): the hash of a text continues the hash of its beginning.
constexpr uint64_t kHashOfNothing = 0xcbf29ce484222325;

uint64_t Hashed(uint64_t begin, std::string_view text) {
  for (const char c : text) begin = (begin ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return begin;
}

std::string RootText(const std::string& letter, const Source& s) {
  return IsPathWord(s.text) ? absl::StrCat(letter, ".", s.text) : absl::StrCat(letter, ".<attr>(", Quoted(s.text), ")");
}

}  // namespace

std::string_view WordOf(Accessor accessor) { return kAccessorWords[static_cast<size_t>(accessor)]; }

SourceId SourceTable::Add(Source source) {
  FT_DCHECK(!source.parent.valid() || source.parent.raw() < sources_.size());  // S1
  const auto [it, added] = ids_.try_emplace(KeyOf(source), SourceId(sources_.size()));
  if (added) {
    const uint64_t begin = BeginsName(source) ? kHashOfNothing : NameHash(source.parent);
    name_hashes_.push_back(Hashed(begin, ShownStep(source)));
    sources_.push_back(std::move(source));
  }
  return it->second;
}

SourceId SourceTable::AddApart(Source source) {
  const size_t id = sources_.size();
  SourceId added = Add(source);
  if (added.raw() == id) return added;
  size_t& marks = marks_[KeyOf(source)];
  // A key may have the text of a marked one.
  while (added.raw() != id) {
    Source marked = source;
    absl::StrAppend(&marked.text, "'");
    if (++marks > 1) absl::StrAppend(&marked.text, marks);
    added = Add(std::move(marked));
  }
  return added;
}

SourceId SourceTable::root(SourceId id) const {
  while ((*this)[id].parent.valid()) id = (*this)[id].parent;
  return id;
}

const char* SourceTable::GlobalLetter(const Source& source) const {
  if (source.accessor != Accessor::kGlobal) return nullptr;
  // One of the entry frame's own function.
  if (!source.parent.valid() || (*this)[source.parent].accessor == Accessor::kFunction) return "G";
  // The two dicts that stand for globals and builtins are, too, known by identity.
  const Source& dict = (*this)[source.parent];
  if (dict.accessor != Accessor::kPinned) return nullptr;
  return dict.text == "G" ? "G" : dict.text == "B" ? "B" : nullptr;
}

std::string SourceTable::ShownStep(const Source& source) const {
  const char* const letter = GlobalLetter(source);
  return letter != nullptr ? RootText(letter, source) : StepText(source);
}

// A path may have as many steps as a linked list has nodes: without recursion, each step is written once.
std::string SourceTable::Name(SourceId id) const {
  if (!id.valid() || id.raw() >= sources_.size()) return "?";
  std::vector<SourceId> steps = {id};
  while (!BeginsName((*this)[steps.back()])) steps.push_back((*this)[steps.back()].parent);
  std::string name;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) absl::StrAppend(&name, ShownStep((*this)[*step]));
  return name;
}

bool IsPinnedPath(const std::string& text) {
  // Roots with a meaning of their own, and words that begin something else where a source may stand.
  static constexpr const char* kTaken[] = {"L",   "C",     "S",   "G",    "B",      "F",    "pinned", "state", "null",
                                           "set", "const", "new", "iter", "method", "cell", "slice",  "at"};
  size_t start = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] != '.') continue;
    const std::string word = text.substr(start, i - start);
    if (!IsPathWord(word) || (word[0] >= '0' && word[0] <= '9')) return false;
    if (start == 0) {
      for (const char* taken : kTaken) {
        if (word == taken) return false;
      }
      int frame = 0;
      if (FrameLetterOf(word, &frame) != 0) return false;
    }
    start = i + 1;
  }
  return true;
}

static std::string LengthStep() {
  Source length;
  length.accessor = Accessor::kLength;
  return StepText(length);
}

std::string LengthName(const std::string& container) { return absl::StrCat(container, LengthStep()); }

uint64_t HashOf(std::string_view name) { return Hashed(kHashOfNothing, name); }

uint64_t LengthNameHash(uint64_t container) { return Hashed(container, LengthStep()); }

std::string StepText(const Source& s) {
  switch (s.accessor) {
    case Accessor::kLocal:
      return RootText(FrameLetter("L", s), s);
    case Accessor::kCell:
      return RootText(FrameLetter("C", s), s);
    case Accessor::kStack:
      return absl::StrCat(FrameLetter("S", s), "[", SlotOf(s.index), "]");
    case Accessor::kPinned:
      return IsPinnedPath(s.text) ? s.text : absl::StrCat("pinned(", Quoted(s.text), ")");
    case Accessor::kFunction:
      return FrameLetter("F", s);
    case Accessor::kAttr:
    case Accessor::kModuleAttr:
      return AttrText(s.text);
    case Accessor::kKey:
      return IsPlainQuoted(s.text) ? absl::StrCat("[", s.text, "]") : absl::StrCat("[key ", Quoted(s.text), "]");
    case Accessor::kGlobal:
      return ".<global>" + AttrText(s.text);
    case Accessor::kKwDefault:
      return absl::StrCat(".<default>[", Quoted(s.text), "]");
    default:
      break;
  }
  const HoleIn text(kTexts[static_cast<size_t>(s.accessor)]);
  std::string shown(text.before);
  if (text.exists()) absl::StrAppend(&shown, s.index, std::string(text.after));
  return shown;
}

}  // namespace frametap
