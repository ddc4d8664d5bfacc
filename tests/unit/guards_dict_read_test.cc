// DictGet finds what a look-up of CPython finds, whatever else is in the dict, and runs no code of a key.
// Laws: dict_read/D1
#include "guards/objects/dict_read.h"

#include "guards/cpython/hash_probe.h"
#include "tests/unit/guards_fixture.h"

namespace frametap {
namespace {

TEST_F(GuardsTest, D1_FindsWhatALookUpFinds) {
  Exec(R"(
import random
def tables():
    chance = random.Random(0)
    keys = [lambda: chance.randrange(50), lambda: chance.randrange(4) << 40, lambda: -chance.randrange(4),
            lambda: float(chance.randrange(9)), lambda: (chance.randrange(3), str(chance.randrange(3))),
            lambda: str(chance.randrange(9)), lambda: frozenset({chance.randrange(3)}), lambda: None, lambda: 2 ** 70]
    for size in [0, 1, 5, 30, 300, 3000, 60000]:
        for _ in range(1 if size > 3000 else 8):
            if size <= 3000:
                table = {chance.choice(keys)(): i for i in range(size)}
            else:
                table = {chance.randrange(2 ** 62): i for i in range(size)}
            for key in list(table):
                if chance.random() < 0.3:
                    del table[key]
            wanted = list(table)[:200] + [chance.choice(keys)() for _ in range(200)]
            yield table, [(key, key in table, table.get(key)) for key in wanted]
tables = list(tables())
)");
  PyObject* const tables = Get("tables");
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tables); ++i) {
    PyObject* const dict = PyTuple_GET_ITEM(PyList_GET_ITEM(tables, i), 0);
    PyObject* const rows = PyTuple_GET_ITEM(PyList_GET_ITEM(tables, i), 1);
    for (Py_ssize_t j = 0; j < PyList_GET_SIZE(rows); ++j) {
      PyObject* const row = PyList_GET_ITEM(rows, j);
      PyObject* value = nullptr;
      const Found found = DictGet(dict, Key::Of(PyTuple_GET_ITEM(row, 0), dict), &value);
      const bool is_there = PyTuple_GET_ITEM(row, 1) == Py_True;
      ASSERT_EQ(found, is_there ? Found::kYes : Found::kNo) << i << " " << j;
      ASSERT_TRUE(!is_there || value == PyTuple_GET_ITEM(row, 2)) << i << " " << j;
    }
  }
}

TEST_F(GuardsTest, D1_DoubtsBesideAKeyWithCodeOfItsOwn) {
  Exec(R"(
log = []
class Loud:
    def __hash__(self): return 5
    def __eq__(self, other): log.append(other); return False
before, after, alone, other_hash = {Loud(): 0, 5: 1}, {5: 1, Loud(): 0}, {Loud(): 0}, {6: 1, Loud(): 0}
log.clear()
)");
  const Ref<> five = Int(5), six = Int(6);
  for (const char* name : {"before", "after", "alone"}) {
    PyObject* value = nullptr;
    EXPECT_EQ(DictGet(Get(name), Key::Of(five.get(), nullptr), &value), Found::kDoubt) << name;
  }
  PyObject* value = nullptr;
  EXPECT_EQ(DictGet(Get("other_hash"), Key::Of(six.get(), nullptr), &value), Found::kYes);
  EXPECT_EQ(PyList_GET_SIZE(Get("log")), 0);
}

TEST_F(GuardsTest, AProbePassesFewEntriesOfALargeDict) {
  Exec("table = {i: i for i in range(100_000)}");
  PyObject* const table = Get("table");
  ASSERT_TRUE(HashProbe::Serves(table));
  HashProbe probe(table, 77'777);
  int passed = 0;
  bool is_there = false;
  for (Py_ssize_t place; probe.Next(&place); ++passed) is_there |= place == 77'777;
  EXPECT_TRUE(is_there);
  EXPECT_LT(passed, 100);
  EXPECT_FALSE(HashProbe::Serves(Eval("{'a': 1}").get()));
}

}  // namespace
}  // namespace frametap
