#include "frame_eval/segment/event_log.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace frametap {

namespace event_log {
uint32_t asked = 0;
}

namespace {

using Kind = LogEntry::Kind;

constexpr std::pair<const char*, Kind> kKinds[] = {
#define LOG_KIND(kind, word, asked) {asked, Kind::kind},
#include "frame_eval/segment/log_kinds.def"
#undef LOG_KIND
};

std::string Count(size_t number, const char* what) { return absl::StrCat(number, " ", what, number == 1 ? "" : "s"); }

void Write(std::string line) {
  // The program's own texts must not end the line.
  std::replace(line.begin(), line.end(), '\n', ' ');
  line = absl::StrCat("frametap: ", line, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

std::string AskForEvents(const std::string& kinds) {
  uint32_t asked = 0;
  std::vector<std::string> unknown;
  for (absl::string_view word : absl::StrSplit(kinds, ',', absl::SkipWhitespace())) {
    word = absl::StripAsciiWhitespace(word);
    bool known = false;
    for (const auto& [name, kind] : kKinds) {
      if (word != name && word != "all") continue;
      asked |= 1u << static_cast<int>(kind);
      known = true;
    }
    if (!known) unknown.emplace_back(word);
  }
  if (unknown.empty()) event_log::asked = asked;
  return absl::StrJoin(unknown, ",");
}

void WriteLog(const LogEntry& entry) {
  const std::string begin = absl::StrCat(std::string(WordOf(entry.kind)), " ", entry.segment, " at ");
  if (entry.kind == Kind::kMiss) {
    const MissReport& miss = entry.miss;
    std::string line = absl::StrCat(begin, miss.source.empty() ? "?" : miss.source);
    for (const auto& [name, text] :
         {std::pair("want", miss.want), {"got", miss.got}, {"why", miss.why}, {"read", ToString(miss.line)}}) {
      if (!text.empty()) absl::StrAppend(&line, ", ", name, " ", text);
    }
    return Write(std::move(line));
  }
  if (entry.kind == Kind::kFault) {
    return Write(absl::StrCat(begin, ToString(entry.at), ", ", entry.text));
  }
  Write(absl::StrCat(begin, ToString(entry.at), ", ", entry.reason, ", ", entry.text));
}

void WriteSegmentLog(LogEntry::Kind kind, const Segment& segment) {
  const Exit& exit = segment.ir.exit;
  std::string line = absl::StrCat(
      std::string(WordOf(kind)), " ", segment.ir.name, " from ", segment.ir.function, ":", segment.ir.entry, ", ",
      Count(segment.ir.graph.nodes.size(), "op"), ", ", Count(segment.guards->predicate_count(), "guard"), ", ",
      exit.kind == Exit::Kind::kReturn ? "returns" : absl::StrCat("resumes at ", ToString(exit.at)));
  if (kind == Kind::kRecorded) {
    char time[32];
    std::snprintf(time, sizeof time, ", %.3f ms", segment.recording_seconds * 1e3);
    line += time;
  }
  Write(std::move(line));
}

}  // namespace frametap
