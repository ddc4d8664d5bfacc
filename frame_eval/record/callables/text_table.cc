// Text and bytes: methods of str and bytes, formatting. All but formatting follow from the values.
#include <string_view>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/knowledge.h"
#include "guards/objects/torch_tensor.h"

namespace frametap {
namespace {

// The reads that the fields of a template make on the given objects: "{0.name}", "{[key]}", "{!r}".
struct Fields {
  bool attributes = false;
  bool items = false;
  bool repr = false;
};

Fields FieldsOf(std::string_view text) {
  Fields fields;
  int depth = 0;  // a format may have fields of its own
  bool in_name = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char at = text[i], next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (at == '{' && depth == 0 && next == '{') {
      ++i;
    } else if (at == '{') {
      ++depth;
      in_name = true;
    } else if (at == '}') {
      if (depth > 0) --depth;
      in_name = false;
    } else if (in_name && (at == ':' || at == '!')) {
      fields.repr |= at == '!' && next != 's';
      in_name = false;
    } else if (in_name) {
      fields.attributes |= at == '.';
      fields.items |= at == '[';
    }
  }
  return fields;
}

// Whose items are what AdoptElements has seen, and no code's.
bool HasPlainItems(PyObject* object, int depth = 8) {
  if (IsScalar(object)) return true;
  if (depth == 0) return false;
  if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      if (!HasPlainItems(PySequence_Fast_GET_ITEM(object, i), depth - 1)) return false;
    }
    return true;
  }
  Py_ssize_t at = 0;
  PyObject *key, *value;
  while (PyDict_CheckExact(object) && PyDict_Next(object, &at, &key, &value)) {
    if (!HasPlainItems(value, depth - 1)) return false;
  }
  return PyDict_CheckExact(object);
}

// str.format, str.format_map: C code looks attributes and items up, and does not report which.
void Format(Trace& trace, Call& call) {
  Py_ssize_t size = 0;
  const bool has_text = !call.args.empty() && PyUnicode_Check(call.args[0]);
  const char* text = has_text ? PyUnicode_AsUTF8AndSize(call.args[0], &size) : nullptr;
  PyErr_Clear();
  if (text == nullptr) throw Break{Reason::unknown_operation, "str.format"};
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (IsTensor(call.args[i])) throw Break{Reason::unknown_operation, "format of a tensor"};
    SpecializeDeep(trace, call.args[i], call.shadows[i], false);
  }
  const Fields fields = FieldsOf({text, static_cast<size_t>(size)});
  if (fields.attributes) throw Break{Reason::unknown_operation, "str.format that reads an attribute"};
  for (size_t i = 1; i < call.args.size(); ++i) {
    if (fields.items && !HasPlainItems(call.args[i])) {
      throw Break{Reason::unknown_operation, "str.format that reads an item"};
    }
    ReadPrinted(trace, call.args[i], fields.repr ? Printed::kRepr : Printed::kStr);
  }
}

}  // namespace

void LoadText() {
  AddRows("builtins", "", Conduct::kPure, {"ascii", "repr"}, Reads::kRepr);
  AddRows("builtins", "", Conduct::kPure, {"format", "str"}, Reads::kStr);
  AddRows("builtins", "", Conduct::kPure, {"bytes", "bytearray"});
  AddRows("builtins", "str", Conduct::kPure,
          {"capitalize",   "casefold", "center",     "count",       "encode",        "endswith",   "expandtabs",
           "find",         "index",    "isalnum",    "isalpha",     "isascii",       "isdecimal",  "isdigit",
           "isidentifier", "islower",  "isnumeric",  "isprintable", "isspace",       "istitle",    "isupper",
           "join",         "ljust",    "lower",      "lstrip",      "maketrans",     "partition",  "removeprefix",
           "removesuffix", "replace",  "rfind",      "rindex",      "rjust",         "rpartition", "rsplit",
           "rstrip",       "split",    "splitlines", "startswith",  "strip",         "swapcase",   "title",
           "translate",    "upper",    "zfill",      "__format__",  "__getnewargs__"});
  for (const char* name : {"format", "format_map"}) AddSpecial("builtins", "str", name, Format);
  AddRows("builtins", "bytes", Conduct::kPure,
          {"capitalize",    "center",    "count",      "decode",       "endswith",     "expandtabs", "find",
           "fromhex",       "hex",       "index",      "isalnum",      "isalpha",      "isascii",    "isdigit",
           "islower",       "isspace",   "istitle",    "isupper",      "join",         "ljust",      "lower",
           "lstrip",        "maketrans", "partition",  "removeprefix", "removesuffix", "replace",    "rfind",
           "rindex",        "rjust",     "rpartition", "rsplit",       "rstrip",       "split",      "splitlines",
           "startswith",    "strip",     "swapcase",   "title",        "translate",    "upper",      "zfill",
           "__getnewargs__"});
}

}  // namespace frametap
