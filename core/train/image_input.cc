#include "core/train/image_input.h"

#include <algorithm>
#include <cmath>

#include "core/data/mixing.h"
#include "core/graph/op.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"

namespace switchyard {
namespace {

// One number per channel as a tensor (C), or as an instruction's constant where they are all alike.
struct PerChannel {
  float constant = 0;
  Value tensor;
};

PerChannel Spread(Graph& graph, const std::vector<float>& numbers) {
  if (std::all_of(numbers.begin(), numbers.end(), [&](float n) { return n == numbers[0]; })) return {numbers[0], {}};
  std::vector<Value> parts;
  for (const float number : numbers) parts.push_back(ops::Full(graph, {1}, number));
  return {0, ops::Concat(parts, 0)};
}

// The arithmetic of core/data/transforms.cc, operation by operation: three that round, none that a compiler may join.
Value Normalized(const Value& pixels, const ImageInput& input) {
  Graph& graph = pixels.graph();
  const PerChannel mean = Spread(graph, input.mean), std = Spread(graph, input.std);
  std::vector<Value> inputs = {pixels};
  for (const PerChannel* numbers : {&mean, &std}) {
    if (numbers->tensor) inputs.push_back(numbers->tensor);
  }
  sy_pointwise_attributes program{};
  const auto count = static_cast<int32_t>(inputs.size());
  const auto add = [&](sy_instruction instruction) {
    program.instructions[program.instruction_count] = instruction;
    return count + static_cast<int32_t>(program.instruction_count++);
  };
  int32_t next_tensor = 1;
  const auto operand = [&](const PerChannel& numbers) {
    return numbers.tensor ? next_tensor++ : add({SY_PW_CONSTANT, 0, 0, 0, numbers.constant});
  };
  const int32_t unit = add({SY_PW_DIV, 0, add({SY_PW_CONSTANT, 0, 0, 0, 255.0f}), 0, 0});
  const int32_t centred = add({SY_PW_SUB, unit, operand(mean), 0, 0});
  program.output_count = 1;
  program.outputs[0] = add({SY_PW_DIV, centred, operand(std), 0, 0});
  return ops::Pointwise(inputs, program, {DType::kF32})[0];
}

// Rows of images (B, H, W·C) with their partners': (own·(unit − share) + other·share) / unit, to the nearest byte. Each
// result but the last is a whole number below 2²⁴, which f32 holds exactly.
Value MixedBytes(const Value& own, const Value& other, const Value& rows, const Value& columns) {
  enum { kOwn, kOther, kRows, kColumns, kUnit, kHalf, kShare, kStep, kMoved, kWhole, kSum, kRounded, kQuotient, kByte };
  constexpr float kOne = kMixUnit;
  const sy_instruction instructions[] = {{SY_PW_CONSTANT, 0, 0, 0, kOne},    {SY_PW_CONSTANT, 0, 0, 0, kOne / 2},
                                         {SY_PW_MUL, kRows, kColumns, 0, 0}, {SY_PW_SUB, kOther, kOwn, 0, 0},
                                         {SY_PW_MUL, kStep, kShare, 0, 0},   {SY_PW_MUL, kOwn, kUnit, 0, 0},
                                         {SY_PW_ADD, kMoved, kWhole, 0, 0},  {SY_PW_ADD, kSum, kHalf, 0, 0},
                                         {SY_PW_DIV, kRounded, kUnit, 0, 0}, {SY_PW_FLOOR, kQuotient, 0, 0, 0}};
  sy_pointwise_attributes program{};
  program.instruction_count = std::size(instructions);
  std::copy(std::begin(instructions), std::end(instructions), program.instructions);
  program.output_count = 1;
  program.outputs[0] = kByte;
  return ops::Pointwise({own, other, rows, columns}, program, {DType::kU8})[0];
}

Value AddPixels(nn::Context& context, const ImageInput& input) {
  const Graph::Scope root(context.graph);
  return context.graph.Input("images", {input.dtype, {input.batch, input.height, input.width, input.channels}},
                             {Role::kBatch, {}, false});
}

// Whether there are kernels for all that `add` makes of bytes.
template <typename Add>
bool Runs(const ImageInput& input, const CanPrepare& can_prepare, const Add& add) {
  Graph graph;
  nn::Context context(graph);
  ImageInput bytes = input;
  bytes.dtype = DType::kU8;
  add(context, bytes);
  return std::all_of(graph.nodes().begin(), graph.nodes().end(),
                     [&](const Node& node) { return IsStructural(node.op) || can_prepare(graph, node); });
}

}  // namespace

Value AddFlips(nn::Context& context, const ImageInput& input) {
  if (!input.flips) return {};
  const Graph::Scope root(context.graph);
  return context.graph.Input("flips", {DType::kU8, {input.batch}}, {Role::kBatch, {}, false});
}

Value Flipped(const Value& x, const Value& flips) {
  if (!flips) return x;
  const Graph::Scope root(x.graph());
  const Graph::Scope scope(x.graph(), "flip");
  return ops::Flip(x, flips, 2);
}

Value AddImages(nn::Context& context, const ImageInput& input, const Value& flips) {
  const Value images = Flipped(AddPixels(context, input), flips);
  const Graph::Scope root(context.graph);
  const Graph::Scope scope(context.graph, "normalize");  // names of other nodes stay as they are with floats
  return input.dtype == DType::kF32 ? images : Normalized(images, input);
}

Value AddMixedImages(nn::Context& context, const ImageInput& input, const Value& flips) {
  Graph& graph = context.graph;
  const Value images = Flipped(AddPixels(context, input), flips);
  const Graph::Scope root(graph);
  const InputInfo batch = {Role::kBatch, {}, false};
  const int64_t b = input.batch, h = input.height, row = input.width * input.channels;
  const Value partners = graph.Input("partners", {DType::kI32, {b}}, batch);
  const Value rows = graph.Input("partner_rows", {DType::kI32, {b, h}}, batch);
  const Value columns = graph.Input("partner_columns", {DType::kU8, {b, row}}, batch);
  Value mixed;
  {
    const Graph::Scope scope(graph, "mix");
    mixed = MixedBytes(ops::Reshape(images, {b, h, row}), ops::Reshape(ops::Gather(images, partners), {b, h, row}),
                       ops::Reshape(rows, {b, h, 1}), ops::Reshape(columns, {b, 1, row}));
    mixed = ops::Reshape(mixed, images.shape());
  }
  const Graph::Scope scope(graph, "normalize");
  return Normalized(mixed, input);
}

Raster PictureOf(const ImageInput& input, const void* row) {
  Raster picture{static_cast<int>(input.width), static_cast<int>(input.height), {}};
  const auto of = [](const std::vector<float>& values, int64_t c) {
    return values.size() == 1 ? values[0] : values[static_cast<size_t>(c)];
  };
  for (int64_t i = 0; i < input.width * input.height; ++i) {
    for (int64_t c = 0; c < 3; ++c) {  // one channel: grey; of more than three the first three
      const int64_t channel = input.channels < 3 ? 0 : c, at = i * input.channels + channel;
      if (input.dtype == DType::kU8) {
        picture.rgb.push_back(static_cast<const uint8_t*>(row)[at]);
      } else {
        const float pixel = static_cast<const float*>(row)[at] * of(input.std, channel) + of(input.mean, channel);
        picture.rgb.push_back(static_cast<uint8_t>(std::clamp(std::lround(pixel * 255), 0L, 255L)));
      }
    }
  }
  return picture;
}

bool TakesBytes(const ImageInput& input, const CanPrepare& can_prepare) {
  return Runs(input, can_prepare, [](nn::Context& context, const ImageInput& bytes) { AddImages(context, bytes); });
}
bool MixesBytes(const ImageInput& input, const CanPrepare& can_prepare) {
  return Runs(input, can_prepare,
              [](nn::Context& context, const ImageInput& bytes) { AddMixedImages(context, bytes); });
}
bool FlipsBytes(const ImageInput& input, const CanPrepare& can_prepare) {
  return Runs(input, can_prepare, [](nn::Context& context, ImageInput bytes) {
    bytes.flips = true;
    const Value flips = AddFlips(context, bytes);
    Flipped(AddPixels(context, bytes), flips);
    Flipped(context.graph.Input("masks", {DType::kI32, {bytes.batch, bytes.height, bytes.width}},
                                {Role::kBatch, {}, false}),
            flips);
  });
}

}  // namespace switchyard
