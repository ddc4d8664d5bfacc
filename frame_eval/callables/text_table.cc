// Text and bytes: methods of str and bytes, formatting. All but formatting follow from the values.
#include "frame_eval/callables/table.h"

namespace frametap {

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
  AddRows("builtins", "str", Conduct::kPure, {"format", "format_map"}, Reads::kStr);
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
