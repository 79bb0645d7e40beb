// The one table of cases: for each op of core/abi/ops.h its attributes and shapes, odd ones included, and what it must
// refuse. From it draw the conformance kit (every kernel of every backend against the f64 reference, gradients against
// finite differences), the tests of the graph's type rules, gradient rules and decompositions, and those that compare
// with PyTorch (tests/ops). The rows are in cases/, one file per family as in core/graph/ops.
//
// The dtype under test is a parameter: Type::kTested operands take it, the others are fixed. A case with a `forward` is
// a gradient: its inputs are taken from a run of the forward case. Built once; thread-safe to read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/abi/ops.h"

namespace switchyard::conform {

using Dims = std::vector<int64_t>;

enum class Type { kTested, kF32, kI32, kI64, kU8 };
enum class Fill {
  kNormal,
  kPositive,     // in [0.5, 2)
  kIntegers,     // whole numbers in [-3, 3]: sums are exact in f32
  kIndex,        // whole numbers in [0, value)
  kPermutation,  // 0, 1, 2, … in any order
  kSignedIndex,  // whole numbers in [-1, value]: with some that are out of range
  kProbability,  // rows of the last axis sum to 1
  kConstant,     // value
  kMask,         // 0 or -100
  kDrifting,     // normal, around a mean that grows from 0 to value: parts of a sum that are joined differ
  kExtreme       // normal, with some large, infinite and not-a-number elements
};
enum class Source { kFresh, kForwardInput, kForwardOutput };

struct Operand {
  Type type = Type::kTested;
  Dims dims;
  Fill fill = Fill::kNormal;
  double value = 0;
  Source source = Source::kFresh;
  int index = -1;        // kForwardInput, kForwardOutput: which one
  int gradient_of = -1;  // input of a gradient case: the incoming gradient of this forward output. Output: the gradient
                         // for this forward input
  bool transposed = false;  // input: stored with its last two axes exchanged, where the kernel takes strided tensors
};

struct OpCase {
  std::string op, name;
  std::vector<uint8_t> attributes;
  std::vector<Operand> inputs, outputs;
  int forward = -1;    // index of the forward case
  bool exact = false;  // no arithmetic, or exact in f32: every bit must agree
  double looser = 1;   // factor on the tolerated error
  std::string id() const { return op + "/" + name; }
};

// What makes no sense: refused by every backend and by the graph's type rule.
struct Nonsense {
  std::string op, what;
  std::function<void(OpCase&)> plant;  // into the op's first case
};

const std::vector<OpCase>& OpCases();
const std::vector<Nonsense>& NonsenseCases();
bool RowsApart(const std::string& op);           // as Table::RowsApart says of it
const OpCase& FirstCase(const std::string& op);  // op: one of OpNames
// The table for programs (tools/fixtures/record_op_cases.py): an array of cases with op, name, attributes as
// hexadecimal bytes, inputs and outputs; a gradient names its forward case.
std::string OpCasesAsJson();
// Is this an op that no graph has before fusion makes it where a backend offers it? No backend lacks it.
bool MadeByFusion(const std::string& op);
// Names of all ops of ops.h that kernels run.
std::vector<std::string> OpNames();

}  // namespace switchyard::conform
