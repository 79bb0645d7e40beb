// What a model's parameters, and state of their shapes, are in a file: one tensor under another name, several of which
// each is a run of the parameter's elements, or elements in another order (TrainableModel::to_file). Which of these is
// found out once for each parameter, by giving to_file the numbers of its elements, so that what lies as it is to be in
// the file is written from where it lies.
//
// Not thread-safe.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/train/tensor_file.h"
#include "core/train/trainable_model.h"

namespace switchyard {

class FileLayout {
 public:
  explicit FileLayout(const TrainableModel& model) : to_file_(model.to_file) {}

  struct Tensor {
    std::string name;
    Shape shape;
    int64_t begin = 0;  // its first element, of the parameter's (after Move, where elements are moved)
  };
  struct Published {
    std::vector<Tensor> tensors;
    bool moved = false;  // elements have another order than the parameter's
  };
  // Internal where to_file does not give each element once. What is returned stands as long as this.
  StatusOr<const Published*> Of(const std::string& parameter, const Shape& shape);
  // Brings values of a parameter whose elements are moved, row-major f32, into the order of its tensors, one behind
  // another.
  void Move(const std::string& parameter, const Shape& shape, float* values);

 private:
  const Renaming to_file_;
  std::map<std::string, Published> published_;  // by parameter
  std::vector<float> scratch_;                  // kept, since new memory is slow to touch
};

}  // namespace switchyard
