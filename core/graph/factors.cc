#include "core/graph/factors.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "core/graph/op.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

using Dimension = Factors::Dimension;
using Operand = Factors::Operand;

[[noreturn]] void Refuse(const std::string& line, const std::string& problem) {
  throw BuildError(fmt::format("factors \"{}\": {}", line, problem));
}

// Words between spaces; parentheses are words of their own.
std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  bool open = false;  // does the next letter go on with the last word?
  for (const char c : text) {
    const bool alone = c == '(' || c == ')';
    if (c == ' ' || alone) open = false;
    if (c == ' ') continue;
    if (open) {
      words.back() += c;
    } else {
      words.emplace_back(1, c);
    }
    open = !alone;
  }
  return words;
}

std::vector<std::string> Split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + separator.size())
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

class Reader {
 public:
  explicit Reader(const std::string& line) : line_(line) {}

  Factors Read(const std::vector<Shape>& inputs, const std::vector<Shape>& outputs) {
    const std::vector<std::string> sides = Split(line_, "->");
    if (sides.size() != 2) Refuse(line_, "expected inputs -> outputs");
    ReadSide(sides[0], inputs, factors_.inputs);
    ReadSide(sides[1], outputs, factors_.outputs);
    for (const auto& [operand, name] : same_on_) {
      for (size_t axis = 0; axis < factors_.axes.size(); ++axis) {
        if (factors_.axes[axis].name == name || (name == "*" && !factors_.axes[axis].whole()))
          factors_.outputs[operand].same_on.push_back(static_cast<int>(axis));
      }
    }
    FindExtents(inputs, outputs);
    return std::move(factors_);
  }

 private:
  void ReadSide(const std::string& side, const std::vector<Shape>& shapes, std::vector<Operand>& operands) {
    const std::vector<std::string> texts = Split(side, ",");
    const bool nothing = shapes.empty() && Words(side).empty();
    if (!nothing && texts.size() != shapes.size())
      Refuse(line_, fmt::format("{} operands for {} tensors", texts.size(), shapes.size()));
    for (size_t i = 0; i < shapes.size(); ++i) operands.push_back(ReadOperand(texts[i], shapes[i], i));
  }

  Operand ReadOperand(const std::string& text, const Shape& shape, size_t index) {
    Operand operand;
    std::vector<std::vector<std::string>> dimensions;
    size_t ellipsis = std::string::npos;  // where axes are to be put in
    bool whole_ellipsis = false, packed = false;
    for (std::string word : Words(text)) {
      if (word[0] == '=') {
        same_on_.emplace_back(index, word.substr(1));
        continue;
      }
      if (word[0] == '+') {
        operand.added = true;
        word = word.substr(1);
        if (word.empty()) continue;
      }
      if (word == "...") {
        ellipsis = dimensions.size();
      } else if (word == "_...") {
        ellipsis = dimensions.size();
        whole_ellipsis = true;
      } else if (word == "(") {
        packed = true;
        dimensions.emplace_back();
      } else if (word == ")") {
        packed = false;
      } else if (packed) {
        dimensions.back().push_back(word);
      } else {
        dimensions.push_back({word});
      }
    }
    if (ellipsis != std::string::npos) PutIn(shape, whole_ellipsis, ellipsis, dimensions);
    if (dimensions.empty() && shape == Shape{1}) dimensions = {{"1"}};  // no axes are left, written as one element
    if (dimensions.size() != shape.size())
      Refuse(line_, fmt::format("\"{}\" stands for a tensor of {}", text, ToString(shape)));
    for (const auto& names : dimensions) {
      Dimension& dimension = operand.dimensions.emplace_back();
      for (const std::string& name : names) dimension.push_back(AxisOf(name));
    }
    return operand;
  }

  // The axes of an ellipsis at `place`: what the other dimensions of the tensor leave.
  void PutIn(const Shape& shape, bool whole, size_t place, std::vector<std::vector<std::string>>& dimensions) {
    if (shape.size() < dimensions.size()) Refuse(line_, fmt::format("a tensor of {} is too small", ToString(shape)));
    size_t count = shape.size() - dimensions.size();
    if (!whole) {
      if (!ellipsis_) ellipsis_ = count;
      count = *ellipsis_;
    }
    std::vector<std::vector<std::string>> axes;
    for (size_t i = 0; i < count; ++i) axes.push_back({whole ? "_" : fmt::format(".{}", i)});
    dimensions.insert(dimensions.begin() + static_cast<int64_t>(place), axes.begin(), axes.end());
  }

  int AxisOf(const std::string& name) {
    const auto found = named_.find(name);
    if (found != named_.end()) return found->second;
    const auto axis = static_cast<int>(factors_.axes.size());
    int64_t extent = 0;
    const auto number = std::from_chars(name.data(), name.data() + name.size(), extent);
    const bool literal = number.ec == std::errc() && number.ptr == name.data() + name.size();
    factors_.axes.push_back({literal ? "_" : name, extent});
    if (!literal && name != "_") named_[name] = axis;
    return axis;
  }

  // From the tensors' shapes; of a packed dimension an axis follows from the others.
  void FindExtents(const std::vector<Shape>& inputs, const std::vector<Shape>& outputs) {
    std::vector<std::pair<const Dimension*, int64_t>> open;
    const auto collect = [&](const std::vector<Operand>& operands, const std::vector<Shape>& shapes) {
      for (size_t i = 0; i < operands.size(); ++i) {
        for (size_t d = 0; d < shapes[i].size(); ++d) open.emplace_back(&operands[i].dimensions[d], shapes[i][d]);
      }
    };
    collect(factors_.inputs, inputs);
    collect(factors_.outputs, outputs);
    for (bool found = true; found;) {
      found = false;
      for (const auto& [dimension, extent] : open) {
        int64_t known = 1;
        std::vector<int> missing;
        for (const int axis : *dimension) {
          if (factors_.axes[axis].extent == 0) {
            missing.push_back(axis);
          } else {
            known *= factors_.axes[axis].extent;
          }
        }
        if (missing.size() > 1) continue;
        if (missing.size() == 1 && extent % known == 0 && extent > 0) {
          factors_.axes[missing[0]].extent = extent / known;
          found = true;
        } else if (!missing.empty() || known != extent) {
          Refuse(line_, fmt::format("its axes do not give a dimension of {}", extent));
        }
      }
    }
    for (const Factors::Axis& axis : factors_.axes) {
      if (axis.extent == 0) Refuse(line_, fmt::format("the extent of {} is open", axis.name));
    }
  }

  const std::string& line_;
  Factors factors_;
  std::map<std::string, int> named_;
  std::optional<size_t> ellipsis_;                       // axes of "..."
  std::vector<std::pair<size_t, std::string>> same_on_;  // output, name of an axis
};

}  // namespace

std::optional<AxisPlace> PlaceOf(const Factors& factors, const Operand& operand, int axis) {
  for (size_t d = 0; d < operand.dimensions.size(); ++d) {
    const Dimension& dimension = operand.dimensions[d];
    const auto found = std::find(dimension.begin(), dimension.end(), axis);
    if (found == dimension.end()) continue;
    AxisPlace place = {static_cast<int>(d)};
    for (auto it = dimension.begin(); it != found; ++it) place.outer *= factors.axes[*it].extent;
    for (auto it = found + 1; it != dimension.end(); ++it) place.inner *= factors.axes[*it].extent;
    return place;
  }
  return std::nullopt;
}

bool IsPartial(const Factors& factors, const Operand& output, int axis) {
  return !PlaceOf(factors, output, axis) &&
         std::find(output.same_on.begin(), output.same_on.end(), axis) == output.same_on.end();
}

Factors ParseFactors(const std::string& line, const std::vector<Shape>& inputs, const std::vector<Shape>& outputs) {
  return Reader(line).Read(inputs, outputs);
}

std::optional<Factors> FactorsOf(const Graph& graph, const Node& node) {
  const OpDefinition* op = FindOp(node.op);
  if (op == nullptr || !op->factors) return std::nullopt;
  std::vector<Shape> inputs, outputs;
  for (const Ref& input : node.inputs) inputs.push_back(graph.type(input).shape);
  for (const TensorType& output : node.outputs) outputs.push_back(output.shape);
  try {
    return ParseFactors(op->factors.LineOf(graph, node), inputs, outputs);
  } catch (const BuildError& error) {
    ThrowBuildError(node.op, error.what(), {}, node.where);
  }
}

}  // namespace switchyard
