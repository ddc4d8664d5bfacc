#include "backends/onednn/wide_linear.h"

#include "backends/onednn/library.h"

#if defined(__x86_64__)

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <utility>

#include "backends/onednn/kept_memory.h"
#include "backends/onednn/wide_curves.h"

namespace frametap::onednn {
namespace {

constexpr int64_t kPanel = 2 * kLanes;                // outputs
constexpr int64_t kMostRows = 14;                     // of a product: its sums are 28 of the 32 registers
constexpr int64_t kChunk = 384;                       // inputs that are added one after another, see D3
constexpr int64_t kPart = 3 * kChunk;                 // inputs: a panel stays in the second cache, with the next one
constexpr int64_t kBlockOfRows = 12 * kMostRows;      // a part of their x stays there, too
constexpr int64_t kGrainOfLinear = int64_t{1} << 20;  // multiplications that are worth a thread
constexpr int64_t kBytesOfLine = 64;
// Measured: for more pixels or fewer channels oneDNN's convolutions take up to a third less time.
constexpr int64_t kMostPixels = 256, kFewestChannels = 128;

int64_t PanelsOf(const Layer& layer) { return (layer.outputs() + kPanel - 1) / kPanel; }

// Some rows of x times a part of a panel.
struct Product {
  const float* x;
  int64_t x_row;         // elements from a row to the next one
  const float* weights;  // [inputs][kPanel]
  int64_t inputs;
  const char* next;  // weights that are used later
  int64_t fetched;   // bytes of them to fetch for each input
  bool adds;         // to the sums that are there
};

struct alignas(kBytesOfLine) Sums {
  float of[kMostRows][kPanel];
};

// Returns how many sums of one result are kept apart, as a product has to wait for the one before that it is added to.
constexpr int64_t ChainsOf(int64_t rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

// Adds the products of one input to the sums of some rows.
template <int64_t rows>
FRAMETAP_WIDE_VECTORS inline void Step(const float* x, int64_t row, const float* weights, __m512 (&sums)[rows][2]) {
  const __m512 low = _mm512_load_ps(weights), high = _mm512_load_ps(weights + kLanes);
#pragma GCC unroll 14
  for (int64_t r = 0; r < rows; ++r) {
    const __m512 factor = _mm512_set1_ps(x[r * row]);
    sums[r][0] = _mm512_fmadd_ps(factor, low, sums[r][0]);
    sums[r][1] = _mm512_fmadd_ps(factor, high, sums[r][1]);
  }
}

template <int64_t rows>
FRAMETAP_WIDE_VECTORS void Multiply(const Product& p, Sums* to) {
  constexpr int64_t chains = ChainsOf(rows);
  __m512 sums[chains][rows][2];
#pragma GCC unroll 4
  for (auto& chain : sums) {
#pragma GCC unroll 14
    for (auto& row : chain) row[0] = row[1] = _mm512_setzero_ps();
  }
  const float *x = p.x, *weights = p.weights;
  const char* next = p.next;
  int64_t left = p.inputs;
  for (; left >= chains; left -= chains) {
#pragma GCC unroll 4
    for (auto& chain : sums) {
      _mm_prefetch(next, _MM_HINT_T1);
      Step<rows>(x, p.x_row, weights, chain);
      ++x, weights += kPanel, next += p.fetched;
    }
  }
  for (; left > 0; --left, ++x, weights += kPanel) Step<rows>(x, p.x_row, weights, sums[0]);
#pragma GCC unroll 14
  for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int64_t half = 0; half < 2; ++half) {
      __m512 sum = sums[0][r][half];
#pragma GCC unroll 4
      for (int64_t chain = 1; chain < chains; ++chain) sum = _mm512_add_ps(sum, sums[chain][r][half]);
      float* const place = to->of[r] + half * kLanes;
      _mm512_store_ps(place, p.adds ? _mm512_add_ps(_mm512_load_ps(place), sum) : sum);
    }
  }
}

using MultiplyRows = void (*)(const Product&, Sums*);

template <int64_t... rows>
constexpr std::array<MultiplyRows, sizeof...(rows)> EachNumberOfRows(std::integer_sequence<int64_t, rows...>) {
  return {Multiply<rows + 1>...};
}
constexpr auto kMultiply = EachNumberOfRows(std::make_integer_sequence<int64_t, kMostRows>());

// Where the sums of a product go.
struct Place {
  float* result;
  const float* addend;  // null: there is none
  int64_t row;          // elements from a row to the next one
  const float* bias;    // null: there is none
  int64_t columns;      // of the result from here on; the rest of a panel is padding
  bool is_first;        // else the sums are added to those that are there
  float low, high;      // of the curve
};

template <Curve curve>
FRAMETAP_WIDE_VECTORS void Finish(const Sums& sums, int64_t rows, const Place& place) {
  for (int64_t half = 0; half < std::min(kPanel, place.columns); half += kLanes) {
    const __mmask16 some = FirstFloats(place.columns - half);
    const __m512 bias = place.bias != nullptr ? _mm512_maskz_loadu_ps(some, place.bias + half) : _mm512_setzero_ps();
    for (int64_t r = 0; r < rows; ++r) {
      float* const to = place.result + r * place.row + half;
      __m512 y = _mm512_load_ps(sums.of[r] + half);
      if (!place.is_first) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(some, to));
      if (place.bias != nullptr) y = _mm512_add_ps(y, bias);
      if (place.addend != nullptr)
        y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(some, place.addend + r * place.row + half));
      _mm512_mask_storeu_ps(to, some, Curved<curve>(y, place.low, place.high));
    }
  }
}

using FinishRows = void (*)(const Sums&, int64_t, const Place&);

template <size_t... curves>
constexpr std::array<FinishRows, sizeof...(curves)> EachCurve(std::index_sequence<curves...>) {
  return {Finish<static_cast<Curve>(curves)>...};
}
constexpr auto kFinish = EachCurve(std::make_index_sequence<static_cast<size_t>(Curve::kLeakyRelu) + 1>());

// The task of a thread: some panels for some rows.
struct Task {
  const Layer& layer;
  const float* weights;
  const float* x;
  const float* addend;
  float* result;
  int64_t rows;

  void RunPart(int64_t first_input, int64_t from, int64_t to) const;
};

// `from`, `to`: panels.
void Task::RunPart(int64_t first_input, int64_t from, int64_t to) const {
  const int64_t inputs = std::min(kPart, layer.inputs() - first_input), panel = inputs * kPanel;
  const bool is_last = first_input + inputs == layer.inputs();
  const float* w = weights + first_input * PanelsOf(layer) * kPanel + from * panel;
  const FinishRows finish = kFinish[static_cast<size_t>(is_last ? layer.curve : Curve::kNone)];
  const int64_t groups = (rows + kMostRows - 1) / kMostRows;
  // One group alone reads each weight once and in order, which the processor foresees.
  const bool fetches = groups > 1;
  const int64_t fetched = fetches ? (kPanel * static_cast<int64_t>(sizeof(float)) + groups - 1) / groups : 0;
  // The last part finishes the sums.
  const float* const bias = is_last && layer.bias.defined() ? layer.bias.const_data_ptr<float>() : nullptr;
  const float* const added = is_last ? addend : nullptr;
  const auto from_on = [](const float* data, int64_t place) { return data == nullptr ? nullptr : data + place; };
  for (int64_t i = from; i < to; ++i, w += panel) {
    const int64_t column = i * kPanel;
    const char* next =
        reinterpret_cast<const char*>(fetches ? w + panel : w);  // a fetch beyond the last one does nothing
    int64_t row = 0;
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t count = (rows - row) / (groups - group);
      Sums sums;
      const float* const first = x + row * layer.inputs() + first_input;
      for (int64_t done = 0; done < inputs;) {
        const int64_t chunk = std::min(kChunk, inputs - done);
        const Product product{first + done, layer.inputs(), w + done * kPanel, chunk, next, fetched, done > 0};
        kMultiply[static_cast<size_t>(count - 1)](product, &sums);
        done += chunk;
        next += chunk * fetched;
      }
      const int64_t at = row * layer.outputs() + column;
      finish(sums, count,
             {result + at, from_on(added, at), layer.outputs(), from_on(bias, column), layer.outputs() - column,
              first_input == 0, layer.low, layer.high});
      row += count;
    }
  }
}

// The 16 weights of an output from `input` on, with zeros where there is none.
FRAMETAP_WIDE_VECTORS inline __m512i WeightsAt(const Layer& layer, int64_t output, int64_t input, int64_t end) {
  if (output >= layer.outputs()) return _mm512_setzero_si512();
  const float* const row = layer.weight.const_data_ptr<float>() + output * layer.inputs();
  return _mm512_castps_si512(_mm512_maskz_loadu_ps(FirstFloats(end - input), row + input));
}

FRAMETAP_WIDE_VECTORS void Pack(const Layer& layer, float* to) {
  for (int64_t part = 0; part < layer.inputs(); part += kPart) {
    const int64_t end = std::min(part + kPart, layer.inputs());
    for (int64_t panel = 0; panel < PanelsOf(layer); ++panel, to += (end - part) * kPanel) {
      for (int64_t half = 0; half < kPanel; half += kLanes) {
        for (int64_t input = part; input < end; input += kLanes) {
          __m512i columns[kLanes];
          for (int64_t i = 0; i < kLanes; ++i) columns[i] = WeightsAt(layer, panel * kPanel + half + i, input, end);
          Transpose(columns);
          for (int64_t i = 0; i < std::min(kLanes, end - input); ++i) {
            _mm512_store_si512(to + (input - part + i) * kPanel + half, columns[i]);
          }
        }
      }
    }
  }
}

}  // namespace

bool WideLinear::Takes(const Layer& layer, int64_t rows) {
  if (!layer.is_float() || layer.multiplies_bfloat16 || !HasWideVectors()) return false;
  if (!layer.is_convolution()) return true;
  return rows <= kMostPixels && layer.inputs() >= kFewestChannels && layer.IsOfPixels();
}

WideLinear::WideLinear(const Layer& layer) {
  const auto count = static_cast<size_t>(layer.inputs() * PanelsOf(layer) * kPanel);
  const auto weights = std::static_pointer_cast<float>(KeptMemory(count * sizeof(float)));
  Pack(layer, weights.get());
  weights_ = weights;
}

void WideLinear::Run(const Layer& layer, const float* x, int64_t rows, const float* addend, float* result) const {
  const int64_t panels = PanelsOf(layer), blocks = (rows + kBlockOfRows - 1) / kBlockOfRows;
  const int64_t work = (rows + blocks - 1) / blocks * layer.inputs() * kPanel;
  at::parallel_for(0, blocks * panels, std::max<int64_t>(1, kGrainOfLinear / work), [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t block = begin / panels, from = begin % panels, to = std::min(panels, from + end - begin);
      const int64_t row = block * rows / blocks, end_row = (block + 1) * rows / blocks;
      const Task task{layer,
                      weights_.get(),
                      x + row * layer.inputs(),
                      addend == nullptr ? nullptr : addend + row * layer.outputs(),
                      result + row * layer.outputs(),
                      end_row - row};
      for (int64_t input = 0; input < layer.inputs(); input += kPart) task.RunPart(input, from, to);
      begin += to - from;
    }
  });
}

}  // namespace frametap::onednn

#else

#include <c10/util/Exception.h>

namespace frametap::onednn {

bool WideLinear::Takes(const Layer&, int64_t) { return false; }
WideLinear::WideLinear(const Layer&) { TORCH_CHECK(false, "linear: this processor has no AVX-512"); }
void WideLinear::Run(const Layer&, const float*, int64_t, const float*, float*) const {}

}  // namespace frametap::onednn

#endif
