#include "models/convolution_weights.h"

namespace switchyard {
namespace {

constexpr char kCounter[] = "num_batches_tracked";

// (outermost, rows, columns) → (outermost, columns, rows) of the values; the shape is set by the caller.
std::vector<float> Transposed(const std::vector<float>& values, int64_t outermost, int64_t rows, int64_t columns) {
  std::vector<float> result(values.size());
  for (int64_t k = 0; k < outermost; ++k) {
    const float* const from = values.data() + k * rows * columns;
    float* const to = result.data() + k * rows * columns;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
    }
  }
  return result;
}

bool IsConvolutions(const HostTensor& tensor) {
  const size_t rank = tensor.shape.size();
  return (rank == 4 || rank == 5) && Elements(tensor.shape) > 0 &&
         Elements(tensor.shape) == static_cast<int64_t>(tensor.values.size());
}

}  // namespace

HostTensors ConvolutionWeightsFromFile(HostTensors tensors) {
  std::erase_if(tensors, [](const auto& entry) { return entry.first.ends_with(kCounter); });
  for (auto& [name, tensor] : tensors) {
    if (!IsConvolutions(tensor)) continue;
    Shape& shape = tensor.shape;
    const int64_t channels = shape[1], places = Elements(shape) / (shape[0] * channels);
    tensor.values = Transposed(tensor.values, shape[0], channels, places);
    shape.erase(shape.begin() + 1);
    shape.push_back(channels);
  }
  return tensors;
}

HostTensors ConvolutionWeightsToFile(HostTensors tensors) {
  for (auto& [name, tensor] : tensors) {
    if (!IsConvolutions(tensor)) continue;
    Shape& shape = tensor.shape;
    const int64_t channels = shape.back(), places = Elements(shape) / (shape[0] * channels);
    tensor.values = Transposed(tensor.values, shape[0], places, channels);
    shape.pop_back();
    shape.insert(shape.begin() + 1, channels);
  }
  return tensors;
}

}  // namespace switchyard
