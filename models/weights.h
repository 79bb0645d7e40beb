// Weights between us and the world: parameters, and state of the model as running statistics. In memory they have the
// names of its graph and our layout (images are NHWC); in files they have the layout of PyTorch and the names of a
// format (foreign_format.h). It works on tensors in memory; core/train reads and writes the files. Thread-safe: pure
// functions.
#pragma once

#include <string>
#include <vector>

#include "core/graph/host_tensor.h"
#include "models/model.h"

namespace switchyard {

// Below which a model has the weights of another family (ModelFamily::backbone).
inline constexpr char kBackbone[] = "backbone.";

// File → model: finds out the naming, renames, and checks every name and shape. reset_head leaves the classifier out
// (its parameters are then missing from the result and start fresh), and where the file has weights of the backbone
// alone all but that. InvalidArgument lists what is missing, superfluous or of another shape.
StatusOr<HostTensors> ImportWeights(const ResolvedModel& model, HostTensors tensors, bool reset_head);

// Of a file with weights of these names: the parts of the model that start afresh because all of them are its
// backbone's. Empty where they are not.
std::vector<std::string> PartsBesideBackbone(const ResolvedModel& model, const std::vector<std::string>& names);

// The classifier in another order of its classes, of weights as ImportWeights gives them: class i becomes what class
// order[i] was. `order` has each class once; a classifier that is not there stays so.
void ReorderClasses(const ResolvedModel& model, const std::vector<int>& order, HostTensors* tensors);

// Model → file of that format ("timm"). InvalidArgument where its program does not have the model.
StatusOr<HostTensors> ExportWeights(const ResolvedModel& model, HostTensors parameters, const std::string& format);

}  // namespace switchyard
