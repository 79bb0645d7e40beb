// The ops, one function for each file: what core/graph/op.cc puts into the table, under the family's name.
#pragma once

#include <vector>

#include "core/graph/op.h"

namespace switchyard {

std::vector<OpDefinition> StructureOps();
std::vector<OpDefinition> MatmulOps();
std::vector<OpDefinition> AttentionOps();
std::vector<OpDefinition> NormalizationOps();
std::vector<OpDefinition> BatchNormOps();
std::vector<OpDefinition> SoftmaxOps();
std::vector<OpDefinition> LossOps();
std::vector<OpDefinition> PointwiseOps();
std::vector<OpDefinition> ReductionOps();
std::vector<OpDefinition> OrthonormalizeOps();
std::vector<OpDefinition> LayoutOps();
std::vector<OpDefinition> RandomOps();
std::vector<OpDefinition> OptimizerOps();
std::vector<OpDefinition> ConvolutionOps();
std::vector<OpDefinition> PoolingOps();
std::vector<OpDefinition> CollectiveOps();
std::vector<OpDefinition> TransferOps();

}  // namespace switchyard
