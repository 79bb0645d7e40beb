// A dataset with the labels of another list of classes: so that a model trained on cat, dog and zebra is right about
// the dogs of a dataset that knows dog and zebra only. Thread-safe as the dataset is.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/data/dataset.h"

namespace switchyard {

// `data` with class_names() == classes, and each label that of the class with the same name. InvalidArgument names the
// classes of the data that are not in `classes`, or a name that stands twice in either.
StatusOr<std::unique_ptr<Dataset>> WithClasses(std::unique_ptr<Dataset> data, const std::vector<std::string>& classes);

}  // namespace switchyard
