// Weights of convolutional networks between the graph and files of PyTorch. A convolution's weight, which is whatever
// has four or five dimensions, is (K, kernel, C/groups) in the graph and (K, C/groups, kernel) in files, a transposed
// convolution's alike with (C, kernel, K) and (C, K, kernel). The counters `num_batches_tracked` of PyTorch's batch
// norms are left out on reading, and not written: they matter to none whose momentum is a number, and PyTorch starts
// them by itself where a file has none. Thread-safe: pure functions.
#pragma once

#include "core/graph/host_tensor.h"

namespace switchyard {

HostTensors ConvolutionWeightsFromFile(HostTensors tensors);
HostTensors ConvolutionWeightsToFile(HostTensors tensors);

}  // namespace switchyard
