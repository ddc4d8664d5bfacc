// KeptMemory: parts of any size, made and dropped in any order by several threads, keep what is written to them.
// Laws: kept_memory/H1, kept_memory/H2
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "backends/onednn/kept_memory.h"

namespace frametap::onednn {
namespace {

struct Part {
  std::shared_ptr<void> memory;
  size_t bytes;
  unsigned char filled;

  unsigned char* data() const { return static_cast<unsigned char*>(memory.get()); }
  bool IsWhole() const {
    return std::all_of(data(), data() + bytes, [&](unsigned char byte) { return byte == filled; });
  }
};

TEST(KeptMemory, H1_PartsKeepTheirBytes) {
  std::vector<std::thread> threads;
  std::vector<int> broken(3, 0);
  for (size_t t = 0; t < broken.size(); ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<Part> parts;
      for (int round = 0; round < 150; ++round) {
        const size_t bytes = size_t{1} << random() % 23;
        const Part made{KeptMemory(bytes), bytes, static_cast<unsigned char>(random())};
        broken[t] += reinterpret_cast<uintptr_t>(made.data()) % 64 == 0 ? 0 : 1;
        std::fill(made.data(), made.data() + bytes, made.filled);
        parts.push_back(made);
        if (random() % 2 == 0) {
          const auto dropped = parts.begin() + static_cast<int64_t>(random() % parts.size());
          broken[t] += dropped->IsWhole() ? 0 : 1;
          parts.erase(dropped);
        }
      }
      for (const Part& part : parts) broken[t] += part.IsWhole() ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(broken, std::vector<int>(3, 0));
}

TEST(KeptMemory, H1_APartKeepsItsChunk) {
  constexpr size_t kHuge = size_t{20} << 20, kBytes = size_t{1} << 20;  // a chunk of its own, with a rest
  std::shared_ptr<void> first = KeptMemory(kHuge + kBytes), second = KeptMemory(kBytes);
  EXPECT_EQ(static_cast<char*>(second.get()) - static_cast<char*>(first.get()), kHuge + kBytes);
  const std::weak_ptr<void> chunk = first;
  first.reset();
  EXPECT_FALSE(chunk.expired());
  second.reset();
  EXPECT_TRUE(chunk.expired());
}

}  // namespace
}  // namespace frametap::onednn
