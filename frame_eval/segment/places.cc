#include "frame_eval/segment/places.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "frame_eval/cpython/exception_table.h"
#include "frame_eval/cpython/frame_view.h"

namespace frametap {

PlaceId Places::Add(PlaceId caller, PyCodeObject* code, int offset, const Module* module) {
  Site site{caller, offset, code, kNowhere};
  if (module != nullptr) {
    // The next call of a frame that is still there.
    const bool is_known = !modules_.empty() && modules_.back().source == module->source && module->source.valid();
    if (!is_known) modules_.push_back(*module);
    site.module = static_cast<uint32_t>(modules_.size() - 1);
  }
  sites_.emplace_back(site);
  return static_cast<PlaceId>(sites_.size() - 1);
}

PlaceId Places::AddOutside(PlaceId caller, Module module) {
  modules_.push_back(std::move(module));
  sites_.emplace_back(Site{caller, 0, nullptr, static_cast<uint32_t>(modules_.size() - 1)});
  return static_cast<PlaceId>(sites_.size() - 1);
}

void Places::NamePaths(absl::FunctionRef<std::optional<SharedText>(const Module&)> path_of) {
  for (Module& module : modules_) module.path = path_of(module);
}

PlaceId Places::Repeat(PlaceId place, Repetition* repetition, absl::FunctionRef<SourceId(SourceId)> is_now) {
  if (place == repetition->site_) return repetition->onto_;
  const PlaceId number = place - repetition->from_.sites;
  if (place < repetition->from_.sites || number >= repetition->told_.size()) return kNowhere;
  if (repetition->told_[number] != kNowhere) return repetition->told_[number];
  Site site = sites_[place];
  site.caller = Repeat(site.caller, repetition, is_now);
  if (site.caller == kNowhere) return kNowhere;
  if (site.module != kNowhere) {
    const uint32_t of_call = site.module - repetition->from_.modules;
    if (site.module < repetition->from_.modules || of_call >= repetition->modules_.size()) return kNowhere;
    uint32_t& now = repetition->modules_[of_call];
    if (now == kNowhere) {
      const Module& was = modules_[site.module];
      modules_.push_back({was.source.valid() ? is_now(was.source) : SourceId(), was.klass});
      now = static_cast<uint32_t>(modules_.size() - 1);
    }
    site.module = now;
  }
  sites_.emplace_back(site);
  return repetition->told_[number] = static_cast<PlaceId>(sites_.size() - 1);
}

bool Places::AreAlike(PlaceId a, PlaceId b) const {
  while (a != b) {
    if (a == kNowhere || b == kNowhere) return false;
    const Site &one = sites_[a], &other = sites_[b];
    if (one.code != other.code || one.offset != other.offset) return false;
    if ((one.module == kNowhere) != (other.module == kNowhere)) return false;
    if (one.module != kNowhere && modules_[one.module].source != modules_[other.module].source) return false;
    a = one.caller;
    b = other.caller;
  }
  return true;
}

bool Places::IsHandled(PlaceId place) const {
  ExceptionHandler handler;
  for (; place != kNowhere; place = sites_[place].caller) {
    if (sites_[place].code != nullptr && FindHandler(sites_[place].code, sites_[place].offset / 2, &handler))
      return true;
  }
  return false;
}

void Places::Keep() {
  absl::flat_hash_set<PyCodeObject*> met;
  std::array<PyCodeObject*, 16> recent{};  // layers have the same few again and again
  for (const Site& site : sites_) {
    if (site.code == nullptr) continue;
    PyCodeObject*& latest = recent[(reinterpret_cast<uintptr_t>(site.code) >> 4) % recent.size()];
    if (std::exchange(latest, site.code) == site.code || !met.insert(site.code).second) continue;
    codes_.push_back(Ref<>::New(reinterpret_cast<PyObject*>(site.code)));
  }
}

class Places::LocationPrinter {
 public:
  LocationPrinter(const Places& places, const SourceTable& sources) : places_(places), sources_(sources) {}

  WherePtr At(PlaceId place) {
    WherePtr& where = told_[place];
    if (!where) where = Tell(place);
    return where;
  }

 private:
  std::shared_ptr<const Where> Tell(PlaceId place) {
    auto where = std::make_shared<Where>();
    where->position = PositionOf(places_.sites_[place]);
    for (PlaceId at = place; at != kNowhere; at = places_.sites_[at].caller) {
      const Site& site = places_.sites_[at];
      if (at != place && site.code != nullptr) where->callers.push_back(PositionOf(site));
      if (site.module == kNowhere) continue;
      const Module& module = places_.modules_[site.module];
      where->scope.push_back({module.path ? *module.path : PathOf(module.source), module.klass});
    }
    std::reverse(where->scope.begin(), where->scope.end());
    return where;
  }

  const Position& PositionOf(const Site& site) {
    const auto [it, is_new] = positions_.try_emplace({site.code, site.offset});
    if (is_new) it->second = tables_.try_emplace(site.code, site.code).first->second.At(site.offset);
    return it->second;
  }

  // Below the outermost module: `blocks.0.linear`.
  SharedText PathOf(SourceId id) {
    if (!id.valid() || !sources_[id].parent.valid()) return SharedText();
    const auto known = paths_.find(id);
    if (known != paths_.end()) return known->second;
    const Source& source = sources_[id];
    std::string part;
    if (source.accessor == Accessor::kItem) part = std::to_string(source.index);
    if (source.accessor == Accessor::kAttr || source.accessor == Accessor::kModuleAttr) part = source.text;
    if (source.accessor == Accessor::kKey) {
      std::copy_if(source.text.begin(), source.text.end(), std::back_inserter(part),
                   [](char c) { return c != '\'' && c != '"'; });
    }
    SharedText path = PathOf(source.parent);
    if (!part.empty() && part != "_modules") path = path.empty() ? part : absl::StrCat(path.str(), ".", part);
    paths_[id] = path;
    return path;
  }

  const Places& places_;
  const SourceTable& sources_;
  absl::flat_hash_map<PlaceId, WherePtr> told_;
  absl::flat_hash_map<std::pair<PyCodeObject*, int>, Position> positions_;
  absl::flat_hash_map<PyCodeObject*, PositionTable> tables_;
  absl::flat_hash_map<SourceId, SharedText> paths_;
};

void Places::Tell(const std::vector<PlaceId>& of_nodes, const SourceTable& sources, Graph* graph) const {
  LocationPrinter teller(*this, sources);
  for (size_t i = 0; i < of_nodes.size(); ++i) graph->nodes[i].where = teller.At(of_nodes[i]);
}

}  // namespace frametap
