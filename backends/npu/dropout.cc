// dropout and drop_path: the ABI says which random number each element gets (Philox4x32-10, Salmon et al., 2011), and
// the runtime's own dropout draws others. So the numbers are made by elementwise operators on 64-bit integers: a 32-bit
// word an element, multiplied in two parts of 16 bits, so that nothing overflows.
#include <array>

#include "backends/npu/kernel.h"

namespace switchyard {
namespace {

using Words = std::array<Operand, 4>;  // i64, each (samples, counters)

class Philox {
 public:
  Philox(Sequence& s, const Dims& dims) : s_(s), dims_(dims) {}

  // Ten rounds over `words` with `key`.
  Words Run(Words words, uint64_t key) {
    auto low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
    Words next = Place();
    for (int round = 0; round < 10; ++round) {
      const Sequence::Scope scope(s_);
      const Operand from0 = Multiply(0xD2511F53, words[0], next[3]), from2 = Multiply(0xCD9E8D57, words[2], next[1]);
      Two(s_.op.BitwiseXorTensor, Two(s_.op.BitwiseXorTensor, from2, words[1]), Value(low), &next[0]);
      Two(s_.op.BitwiseXorTensor, Two(s_.op.BitwiseXorTensor, from0, words[3]), Value(high), &next[2]);
      std::swap(words, next);
      low += 0x9E3779B9;
      high += 0xBB67AE85;
    }
    return words;
  }
  Words Place() {
    Words words;
    for (Operand& word : words) word = s_.Scratch(ACL_INT64, dims_);
    return words;
  }
  // The 32 bits of x, an i32 that broadcasts to the words.
  void Fill(const Operand& x, const Operand& word) {
    const Sequence::Scope scope(s_);
    const Operand wide = s_.Scratch(ACL_INT64, dims_);
    s_.Emit(s_.op.Cast, x.Expanded(dims_), ACL_INT64, wide);
    Two(s_.op.BitwiseAndTensor, wide, Value(0xFFFFFFFF), &word);
  }
  Operand Shifted(const Operand& x, int64_t bits) { return Two(s_.op.RightShift, x, Value(bits)); }

 private:
  Operand Value(int64_t value) { return s_.Constant(std::vector<int64_t>{value}); }
  template <typename Plan>
  Operand Two(const Operator<Plan>& which, const Operand& a, const Operand& b, const Operand* into = nullptr) {
    const Operand to = into != nullptr ? *into : s_.Scratch(ACL_INT64, dims_);
    s_.Emit(which, a, b, to);
    return to;
  }
  Operand Sum(const Operand& a, const Operand& b, const Operand* into = nullptr) {
    const Operand to = into != nullptr ? *into : s_.Scratch(ACL_INT64, dims_);
    s_.Emit(s_.op.Add, a, b, Scalar{1, ACL_INT32}, to);
    return to;
  }
  // The upper 32 bits of factor·x; the lower ones go to `low`.
  Operand Multiply(uint32_t factor, const Operand& x, const Operand& low) {
    const Operand of_low = Two(s_.op.Mul, x, Value(factor & 0xFFFF)), of_high = Two(s_.op.Mul, x, Value(factor >> 16));
    const Operand middle = Sum(of_high, Shifted(of_low, 16));
    Sum(Two(s_.op.Mul, Two(s_.op.BitwiseAndTensor, middle, Value(0xFFFF)), Value(1 << 16)),
        Two(s_.op.BitwiseAndTensor, of_low, Value(0xFFFF)), &low);
    return Shifted(middle, 16);
  }

  Sequence& s_;
  const Dims dims_;
};

sy_status BuildDropout(Sequence& s, Request& r) {
  const auto a = r.Attributes<sy_dropout_attributes>();
  if (const sy_status status = r.Expect(3, 1); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats({1, 2}); status != SY_OK) return status;
  const Operand &x = r.inputs[0], &ids = r.inputs[1], &step = r.inputs[2];
  if (!(a.p >= 0 && a.p <= 1)) return Refuse(r.error, SY_UNSUPPORTED, Text("dropout: p must be in 0 … 1, found ", a.p));
  const int64_t samples = ids.count(), size = x.count() / samples;
  if (ids.dims.size() != 1 || samples * size != x.count())
    return Refuse(r.error, SY_UNSUPPORTED,
                  Text("dropout: ", x.count(), " elements cannot be divided into ", samples, " samples"));
  if (const sy_status status = r.ExpectDims("step", step, {2}); status != SY_OK) return status;
  if (const sy_status status = r.ExpectDims("y", r.outputs[0], x.dims); status != SY_OK) return status;

  const int64_t counters = a.per_sample ? 1 : (size + 3) / 4;
  const Operand numbers = s.Scratch(ACL_FLOAT, {samples, counters, 4});  // 24 random bits each
  {
    const Sequence::Scope scope(s);
    Philox philox(s, {samples, counters});
    const Words start = philox.Place();
    philox.Fill(s.Indices(counters).Reshaped({1, counters}), start[0]);
    philox.Fill(ids.Reshaped({samples, 1}), start[1]);
    philox.Fill(step.Part(0, 0, 1), start[2]);
    philox.Fill(step.Part(0, 1, 1), start[3]);
    const Words words = philox.Run(start, a.key);
    for (int64_t k = 0; k < 4; ++k) {
      s.Emit(s.op.Cast, philox.Shifted(words[static_cast<size_t>(k)], 8).Reshaped({samples, counters, 1}), ACL_FLOAT,
             numbers.Part(2, k, 1));
    }
  }
  const Operand drawn = numbers.Reshaped({samples, 4 * counters}).Part(1, 0, a.per_sample ? 1 : size);
  const Operand keep = s.Holds(s.op.LeTensor, s.Constant(a.p * 0x1p24f), drawn);
  const Operand y = s.Destination(r, 0), rows = y.Reshaped({samples, size});
  s.Where(keep, s.Scaled(s.Wide(x).Reshaped({samples, size}), 1 / (1 - double{a.p})), s.Constant(0), &rows);
  if (y.SamePlaceAs(r.outputs[0]) && x.dtype == ACL_FLOAT) r.inplace[0] = 0;
  return s.Deliver(r, 0, y);
}

const Registration kDropout{"dropout", BuildDropout, sizeof(sy_dropout_attributes)};

}  // namespace
}  // namespace switchyard
