#include "frame_eval/record/break_words.h"

#include <string_view>

#include "frame_eval/record/callables/table.h"
#include "guards/objects/well_known_objects.h"

namespace frametap {
namespace {

std::string_view TextOf(PyObject* object) {
  Py_ssize_t size = 0;
  const char* text = object != nullptr && PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
  if (text == nullptr) PyErr_Clear();
  return text == nullptr ? std::string_view() : std::string_view(text, size);
}

bool IsInstalled(std::string_view file) {
  for (const char* part : {"site-packages", "dist-packages", "/lib/python3", "<frozen ", "<string>"}) {
    if (file.find(part) != std::string_view::npos) return true;
  }
  return file.empty();
}

// Frames of nn.Module.__call__ stand between a line that calls a module and its forward.
bool IsModuleCall(const FrameState& f) { return f.function->func_globals == Objects().module_globals; }

// Returns "torch.amp.autocast_mode.autocast" for the frame of its __init__, and otherwise module and function. A wrapper
// has the name of the wrapped function.
std::string NameOf(const FrameState& f) {
  std::string name = CallableName(reinterpret_cast<PyObject*>(f.function));
  for (const std::string_view made_by : {".__init__", ".__new__", ".__call__"}) {
    if (name.size() > made_by.size() && name.compare(name.size() - made_by.size(), made_by.size(), made_by) == 0) {
      name.resize(name.size() - made_by.size());
    }
  }
  return name;
}

}  // namespace

size_t FrameOfUser(const std::vector<FrameState*>& frames) {
  const std::string_view entry = TextOf(frames.front()->code->co_filename);
  for (size_t i = frames.size(); i-- > 1;) {
    const std::string_view file = TextOf(frames[i]->code->co_filename);
    if (!IsInstalled(file) || file == entry) return i;
  }
  return 0;
}

Break InWordsOfUser(const Break& reason, const std::vector<FrameState*>& frames) {
  // A contradiction to a mark is reported in sentences of its own.
  if (reason.detail.empty() || reason.reason == Reason::marked_size || !reason.inside.empty()) return reason;
  size_t called = FrameOfUser(frames) + 1;
  while (called + 1 < frames.size() && IsModuleCall(*frames[called])) ++called;
  if (called >= frames.size()) return reason;
  return {reason.reason, NameOf(*frames[called]), reason.detail};
}

}  // namespace frametap
