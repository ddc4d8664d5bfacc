#include "ir/block_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace frametap {
namespace {

struct Taken {
  char* block;
  size_t bytes;
  char content;
};

void Check(const Taken& taken) {
  for (size_t i = 0; i < taken.bytes; ++i)
    ASSERT_EQ(taken.block[i], taken.content) << "byte " << i << " of " << taken.bytes;
}

void Give(const Taken& taken) { BlockPool::Give(taken.block, taken.bytes); }

TEST(BlockPool, HandsOutABlockAgain) {
  void* const first = BlockPool::Take(3000);
  BlockPool::Give(first, 3000);
  void* const second = BlockPool::Take(2999);  // of the same size of blocks
  EXPECT_EQ(first == second, BlockPool::kKeeps);
  BlockPool::Give(second, 2999);
}

// Writes each byte of each block: a block that is too small, or that two have, is seen here or by the allocator's checks.
TEST(BlockPool, BlocksOfAnySizeDoNotOverlap) {
  std::mt19937 random(1);
  std::vector<Taken> all;
  for (int step = 0; step < 20000; ++step) {
    if (all.size() < 40 || random() % 2 == 0) {
      const size_t bytes = 1 + random() % 20000;
      Taken taken{static_cast<char*>(BlockPool::Take(bytes)), bytes, static_cast<char>(random())};
      std::memset(taken.block, taken.content, bytes);
      all.push_back(taken);
    } else {
      std::swap(all[random() % all.size()], all.back());
      Check(all.back());
      Give(all.back());
      all.pop_back();
    }
    ASSERT_LE(BlockPool::BytesKept(), BlockPool::kMostKept);
  }
  for (const Taken& taken : all) Give(taken);
}

TEST(BlockPool, EverySizeFits) {
  for (size_t bytes = 1; bytes <= 17000; ++bytes) {
    auto* const block = static_cast<char*>(BlockPool::Take(bytes));
    block[0] = block[bytes - 1] = 1;
    BlockPool::Give(block, bytes);
  }
}

TEST(BlockPool, ABlockMayBeGivenBackInAnotherThread) {
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(BlockPool::Take(2000));
  const size_t kept = BlockPool::BytesKept();
  std::thread([&] {
    for (void* block : blocks) BlockPool::Give(block, 2000);
    EXPECT_EQ(BlockPool::BytesKept() > 0, BlockPool::kKeeps);
  }).join();  // block_pool/P2: they are freed with the thread, as the leak check of a sanitizer sees
  EXPECT_EQ(BlockPool::BytesKept(), kept);
}

struct GivesAtTheEnd {
  void* block = nullptr;
  ~GivesAtTheEnd() { BlockPool::Give(block, 5000); }
};

TEST(BlockPool, ABlockMayBeGivenBackWhileTheThreadEnds) {
  std::thread([] {
    thread_local GivesAtTheEnd last;  // made before the pool watches the thread, so it ends after that
    last.block = BlockPool::Take(5000);
    BlockPool::Give(BlockPool::Take(4000), 4000);
  }).join();
}

TEST(BlockPool, VectorsGrowInIt) {
  std::vector<int, PoolAllocator<int>> numbers;
  for (int i = 0; i < 10000; ++i) numbers.push_back(i);
  for (int i = 0; i < 10000; ++i) ASSERT_EQ(numbers[static_cast<size_t>(i)], i);
}

}  // namespace
}  // namespace frametap
