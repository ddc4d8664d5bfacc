#include "frame_eval/cpython/liveness.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string_view>
#include <vector>

#include "frame_eval/cpython/exception_table.h"
#include "frame_eval/cpython/frame_view.h"

namespace frametap {
namespace {

using Row = std::vector<uint64_t>;

// Returns whether the code reads a global, builtin or attribute of this name, or true if that is unknown.
bool Names(PyCodeObject* code, std::string_view wanted) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_names); ++i) {
    const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(code->co_names, i));
    if (name == nullptr) PyErr_Clear();
    if (name == nullptr || wanted == name) return true;
  }
  return false;
}

// V3
bool LooksAtLocals(PyCodeObject* code) {
  constexpr std::string_view kLookers[] = {"locals", "vars", "eval", "exec", "dir", "_getframe", "currentframe"};
  return std::any_of(std::begin(kLookers), std::end(kLookers),
                     [&](std::string_view name) { return Names(code, name); });
}

// For each instruction of a code object, the set of locals that are live before it.
class LiveTable {
 public:
  explicit LiveTable(PyCodeObject* code) : slots_(SlotCount(code)), words_((slots_ + 63) / 64), rows_(FlowSize(code)) {
    for (int slot = 0; slot < slots_; ++slot) {
      if (KindOfSlot(code, slot) != SlotKind::kLocal) always_.push_back(slot);
    }
    all_ = LooksAtLocals(code);
    if (all_) return;
    if (slots_ > 0 && Names(code, "super")) always_.push_back(0);
    Solve(code);
  }

  std::vector<bool> At(int index) const {
    std::vector<bool> live(slots_, all_ || index < 0 || index >= static_cast<int>(rows_.size()));
    for (int slot : always_) live[slot] = true;
    if (all_ || live.empty() || index >= static_cast<int>(rows_.size())) return live;
    const Row& row = rows_[index];
    for (int slot = 0; slot < slots_; ++slot) {
      if (!row.empty() && (row[slot / 64] >> (slot % 64) & 1)) live[slot] = true;
    }
    return live;
  }

 private:
  void Solve(PyCodeObject* code) {
    struct Entry {
      int index;
      FlowNode node;
      int handler;
    };
    std::vector<Entry> entries;
    std::vector<ExceptionHandler> handlers = AllHandlers(code);
    size_t h = 0;
    for (int index = 0; index < FlowSize(code);) {
      FlowNode node = FlowAt(code, index);
      while (h < handlers.size() && handlers[h].end <= node.acting) ++h;
      bool covered = h < handlers.size() && handlers[h].start <= node.acting;
      entries.push_back({index, node, covered ? handlers[h].target : -1});
      rows_[index].assign(words_, 0);
      index = node.next;
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
        const FlowNode& node = entry->node;
        Row live(words_, 0);
        if (node.falls_through) Merge(&live, node.next);
        if (node.target >= 0) Merge(&live, node.target);
        if (node.writes >= 0) live[node.writes / 64] &= ~(uint64_t{1} << (node.writes % 64));
        // The instruction may raise before it writes.
        if (entry->handler >= 0) Merge(&live, entry->handler);
        if (node.reads >= 0) live[node.reads / 64] |= uint64_t{1} << (node.reads % 64);
        if (live != rows_[entry->index]) {
          rows_[entry->index] = live;
          changed = true;
        }
      }
    }
  }

  void Merge(Row* live, int index) {
    if (index >= static_cast<int>(rows_.size()) || rows_[index].empty()) return;
    for (int i = 0; i < words_; ++i) (*live)[i] |= rows_[index][i];
  }

  int slots_;
  int words_;
  bool all_ = false;
  std::vector<int> always_;
  std::vector<Row> rows_;  // by code unit; empty where no instruction begins
};

Py_ssize_t ExtraIndex() {
  static const Py_ssize_t index =
      _PyEval_RequestCodeExtraIndex([](void* table) { delete static_cast<LiveTable*>(table); });
  return index;
}

}  // namespace

std::vector<bool> LiveLocals(PyCodeObject* code, int offset) {
  auto* object = reinterpret_cast<PyObject*>(code);
  void* kept = nullptr;
  Py_ssize_t index = ExtraIndex();
  if (index < 0 || _PyCode_GetExtra(object, index, &kept) < 0) {
    PyErr_Clear();
    return LiveTable(code).At(offset / 2);
  }
  if (kept == nullptr) {
    auto table = std::make_unique<LiveTable>(code);
    if (_PyCode_SetExtra(object, index, table.get()) < 0) {
      PyErr_Clear();
      return table->At(offset / 2);
    }
    kept = table.release();
  }
  return static_cast<LiveTable*>(kept)->At(offset / 2);
}

bool AssignsLocal(PyCodeObject* code, int slot) {
  for (int index = 0; index < FlowSize(code);) {
    const FlowNode node = FlowAt(code, index);
    if (node.writes == slot) return true;
    index = node.next;
  }
  return false;
}

}  // namespace frametap
