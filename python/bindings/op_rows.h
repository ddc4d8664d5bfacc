// The rows of a report, one for each op of a graph, as Python sees them.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "backends/quant/reported_op.h"

namespace frametap {

// `add` puts the rest of a row beside the name and the place of the op.
template <class Report, class Add>
pybind11::list OpRows(const std::vector<Report>& report, const Add& add) {
  pybind11::list rows;
  for (const Report& r : report) {
    const quant::ReportedOp& named = r;
    pybind11::dict row;
    row["op"] = named.op;
    row["function"] = named.position.function.str();
    row["file"] = named.position.file.str();
    row["line"] = named.position.line;
    row["column"] = named.position.col;
    row["scope"] = named.scope;
    add(r, row);
    rows.append(std::move(row));
  }
  return rows;
}

}  // namespace frametap
