// How the rows of the case table are written: operands, forward cases, gradients that refer to the case before them,
// and what is refused.
#pragma once

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/conform/op_cases.h"

namespace switchyard::conform {

// T takes the dtype under test, F is f32, I is i32 (whole numbers in [0, limit)).
inline Operand T(Dims dims, Fill fill = Fill::kNormal, double value = 0) {
  return {Type::kTested, std::move(dims), fill, value};
}
inline Operand F(Dims dims, Fill fill = Fill::kNormal, double value = 0) {
  return {Type::kF32, std::move(dims), fill, value};
}
inline Operand I(Dims dims, double limit, Fill fill = Fill::kIndex) {
  return {Type::kI32, std::move(dims), fill, limit};
}

class Table {
 public:
  // A forward case, or one that stands alone.
  template <typename A>
  OpCase& Add(const char* op, const char* name, A attributes, std::vector<Operand> inputs,
              std::vector<Operand> outputs) {
    OpCase& added = Add(op, name, std::move(inputs), std::move(outputs));
    added.attributes.resize(sizeof(A));
    std::memcpy(added.attributes.data(), &attributes, sizeof(A));
    return added;
  }
  OpCase& Add(const char* op, const char* name, std::vector<Operand> inputs, std::vector<Operand> outputs) {
    OpCase added;
    added.op = op;
    added.name = name;
    added.inputs = std::move(inputs);
    added.outputs = std::move(outputs);
    cases_.push_back(std::move(added));
    forward_ = static_cast<int>(cases_.size()) - 1;
    return cases_.back();
  }
  // The gradient of the last case of Add, with its name and attributes. "i0" is its input 0, "o1" its output 1, "g0"
  // the incoming gradient of output 0; the outputs are gradients of the listed inputs, f32 where the input is listed in
  // `f32`.
  OpCase& Gradient(const char* op, std::vector<std::string> inputs, std::vector<int> outputs,
                   std::vector<int> f32 = {}) {
    const OpCase from = cases_[forward_];
    OpCase added;
    added.op = op;
    added.name = from.name;
    added.attributes = from.attributes;
    added.forward = forward_;
    added.looser = from.looser;
    for (const std::string& text : inputs) {
      const int index = text[1] - '0';
      Operand operand = text[0] == 'i' ? from.inputs[index] : from.outputs[index];
      operand.index = index;
      if (text[0] == 'g') {
        operand.gradient_of = index;
      } else {
        operand.source = text[0] == 'i' ? Source::kForwardInput : Source::kForwardOutput;
      }
      added.inputs.push_back(operand);
    }
    for (const int index : outputs) {
      Operand operand = from.inputs[index];
      if (std::find(f32.begin(), f32.end(), index) != f32.end()) operand.type = Type::kF32;
      operand.gradient_of = index;
      added.outputs.push_back(operand);
    }
    cases_.push_back(std::move(added));
    return cases_.back();
  }
  // What these ops refuse: change(attributes) makes it of the attributes of their first case.
  template <typename A, typename F>
  void Refuse(std::initializer_list<const char*> ops, const char* what, F change) {
    for (const char* op : ops) {
      nonsense_.push_back({op, what, [change](OpCase& one) {
                             A attributes;
                             std::memcpy(&attributes, one.attributes.data(), sizeof attributes);
                             change(attributes);
                             std::memcpy(one.attributes.data(), &attributes, sizeof attributes);
                           }});
    }
  }
  // Ops whose results have no row that is made of anything but the same row of the first input, and whole other inputs:
  // a row beside one with inf or NaN must not notice.
  void RowsApart(std::initializer_list<const char*> ops) { rows_apart_.insert(ops.begin(), ops.end()); }
  // Ops that no graph has before fusion makes them where a backend offers them: none lacks them.
  void MadeByFusion(std::initializer_list<const char*> ops) { made_by_fusion_.insert(ops.begin(), ops.end()); }
  const std::vector<OpCase>& cases() const { return cases_; }
  const std::vector<Nonsense>& nonsense() const { return nonsense_; }
  const std::set<std::string>& rows_apart() const { return rows_apart_; }
  const std::set<std::string>& made_by_fusion() const { return made_by_fusion_; }

 private:
  std::vector<OpCase> cases_;
  std::vector<Nonsense> nonsense_;
  std::set<std::string> rows_apart_, made_by_fusion_;
  int forward_ = -1;
};

// The families, each in cases/.
void AddMatmul(Table& table);
void AddAttention(Table& table);
void AddWindowAttention(Table& table);
void AddNormalization(Table& table);
void AddSoftmax(Table& table);
void AddLoss(Table& table);
void AddPointwise(Table& table);
void AddReduction(Table& table);
void AddOrthonormalize(Table& table);
void AddLayout(Table& table);
void AddRandom(Table& table);
void AddOptimizer(Table& table);
void AddConvolution(Table& table);

}  // namespace switchyard::conform
