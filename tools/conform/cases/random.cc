// Cases of core/graph/ops/random.cc.
#include "tools/conform/op_table.h"

namespace switchyard::conform {

void AddRandom(Table& table) {
  const auto add = [&](const char* name, Dims dims, int64_t samples, float p, bool per_sample, uint64_t key) {
    sy_dropout_attributes a{};
    a.key = key;
    a.p = p;
    a.per_sample = per_sample;
    table.Add("dropout", name, a, {T(dims), I({samples}, 50000), I({2}, 1000)}, {T(dims)});
    table.Gradient("dropout", {"g0", "i1", "i2"}, {0}).name += "_gradient";
  };
  add("odd", {3, 5, 7}, 3, 0.3f, false, 0x123456789abcdef0ull);
  add("rows_of_samples", {12, 9}, 4, 0.5f, false, 7);
  add("drop_path", {6, 3, 5}, 6, 0.4f, true, 99);
  add("nothing_dropped", {2, 33}, 2, 0, false, 5);
  add("one_element", {1}, 1, 0.5f, false, 11);
}

}  // namespace switchyard::conform
