// orthonormalize: Gram and Schmidt on the rows of many matrices, each row cleared twice of those before it.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/reference/operation.h"

namespace switchyard {
namespace {

void CheckOrthonormalize(Check& check) {
  const int32_t drawn = check.attributes<sy_orthonormalize_attributes>().drawn;
  if (!check.Knows(drawn == 0 || drawn == 1, "drawn is neither 0 nor 1")) return;
  const size_t given = check.input_count(), count = drawn ? given / 2 : given;
  if (!check.Need(count > 0 && (!drawn || given % 2 == 0), "expected at least one matrix, each with what is drawn") ||
      !check.Operands(given, count)) {
    return;
  }
  for (size_t i = 0; i < given; ++i) {
    check.Knows(check.InputType(i) == SY_F32 || check.InputType(i) == SY_F64, "matrices are f32");
    check.Rank("a matrix", i, 2) && check.Input("d", i, check.InputDims(i % count));
  }
  for (size_t o = 0; o < count; ++o) {
    check.Knows(check.problem().outputs[o].dtype == check.InputType(o), "a result has the dtype of its matrix");
    check.Output("q", o, check.InputDims(o));
  }
}

double Dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Σ v² as f32 holds it: what is beyond its range is infinite, or 0.
double Squares(const double* v, int64_t n) { return double{static_cast<float>(Dot(v, v, n))}; }

// Row i of q; those before it are done.
void ClearRow(double* q, int64_t i, int64_t columns) {
  double* const v = q + i * columns;
  const double given = Squares(v, columns);
  for (int round = 0; round < 2; ++round) {
    std::vector<double> shares;
    for (int64_t j = 0; j < i; ++j) shares.push_back(Dot(v, q + j * columns, columns));
    for (int64_t j = 0; j < i; ++j) {
      for (int64_t k = 0; k < columns; ++k) v[k] -= shares[static_cast<size_t>(j)] * q[j * columns + k];
    }
  }
  const double left = Squares(v, columns), scale = left <= 1e-10 * given ? 0 * left : 1 / std::sqrt(left);
  for (int64_t k = 0; k < columns; ++k) v[k] *= scale;
}

void RunOrthonormalize(Call& call) {
  const size_t count = call.output_count();
  for (size_t o = 0; o < count; ++o) {
    Array& q = call.output(o);
    q.values = call.input(o).values;
    const int64_t rows = q.dims[0], columns = q.dims[1];
    for (int64_t i = 0; i < rows; ++i) {
      double* const v = q.values.data() + i * columns;
      if (call.input_count() > count && Squares(v, columns) == 0)
        std::copy_n(call.input(count + o).values.data() + i * columns, columns, v);
      ClearRow(q.values.data(), i, columns);
    }
  }
}

int OrthonormalizeUpdates(const Problem&, size_t o) { return static_cast<int>(o); }

const Operation kOrthonormalize{"orthonormalize", sizeof(sy_orthonormalize_attributes), CheckOrthonormalize,
                                RunOrthonormalize, OrthonormalizeUpdates};

}  // namespace
}  // namespace switchyard
