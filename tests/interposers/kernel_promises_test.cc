// What both sides promise of kernels and their bindings, held to by the validating interposer.
#include "tests/interposers/promises.h"

namespace switchyard {
namespace {

TEST_F(PromiseTest, ConstantsAreBoundAndWrittenBeforeTheFirstLaunch) {
  Wrap();
  sy_kernel* const kernel = Prepare("tabled");
  sy_buffer* constants = nullptr;
  ASSERT_EQ(api_->alloc(device_, FakePlugin::kConstantBytes, nullptr, &constants, &error_), SY_OK);
  Places without(At(buffer_), At(buffer_, 256));
  sy_bound* bound = nullptr;
  ExpectRefused(kernels_->bind(device_, kernel, &without.binding, &bound, &launch_, &error_),
                {"bind", "constants: expected device memory for 64 bytes"});
  bound = Bind(kernel, At(constants));
  ExpectRefused(launch_(bound, stream_, &error_), {"launch", "names constants that write_constants has not written"});
  ExpectRefused(kernels_->write_constants(device_, kernel, stream_, At(constants, 64), &error_),
                {"write_constants", "do not lie inside 64 bytes"});
  EXPECT_EQ(kernels_->write_constants(device_, kernel, stream_, At(constants), &error_), SY_OK) << error_.message;
  EXPECT_EQ(launch_(bound, stream_, &error_), SY_OK) << error_.message;
  ExpectRefused(kernels_->write_constants(device_, kernel, stream_, At(constants), &error_),
                {"are written there already"});
  EXPECT_EQ(api_->synchronize(device_, stream_, nullptr, &error_), SY_OK);
  kernels_->unbind(device_, bound);
  kernels_->release(device_, kernel);
  api_->free(device_, constants);
  End();
}

TEST_F(PromiseTest, WhoeverAsksForConstantsWritesThem) {
  fake_.kernel.write_constants = nullptr;
  Wrap();
  sy_kernel* const kernel = Prepare("tabled");
  ExpectPending(
      {"the plugin broke a promise", "tabled", "64 bytes of constants", "lacks the function write_constants"});
  kernels_->release(device_, kernel);
  End();
}

TEST_F(PromiseTest, ASecondChoiceSaysWhy) {
  fake_.kernel.prepare = [](sy_device*, const sy_prepare_request* request, sy_kernel** made, sy_kernel_info* info,
                            sy_error*) {
    info->second_choice = std::strcmp(request->op, "silent") == 0 ? "" : "its library is missing";
    return NewHandle(made);
  };
  Wrap();
  sy_kernel* const frank = Prepare("frank");
  EXPECT_EQ(Pending(), "");
  sy_kernel* const silent = Prepare("silent");
  ExpectPending({"the plugin broke a promise", "silent: it calls the kernel its second choice without a word why"});
  for (sy_kernel* const kernel : {frank, silent}) kernels_->release(device_, kernel);
  End();
}

TEST_F(PromiseTest, OutputsOverlapOnlyAsTheKernelAllows) {
  fake_.kernel.prepare = [](sy_device*, const sy_prepare_request* request, sy_kernel** made, sy_kernel_info* info,
                            sy_error*) {
    if (std::strcmp(request->op, "inplace") == 0) info->inplace[0] = 0;
    return NewHandle(made);
  };
  Wrap();
  sy_bound* bound = nullptr;
  Places same(At(buffer_), At(buffer_)), askew(At(buffer_), At(buffer_, 64));
  sy_kernel* const plain = Prepare("plain");
  ExpectRefused(kernels_->bind(device_, plain, &same.binding, &bound, &launch_, &error_),
                {"output 0 overlaps input 0, which the kernel does not allow"});
  sy_kernel* const inplace = Prepare("inplace");
  ExpectRefused(kernels_->bind(device_, inplace, &askew.binding, &bound, &launch_, &error_), {"output 0 overlaps"});
  EXPECT_EQ(kernels_->bind(device_, inplace, &same.binding, &bound, &launch_, &error_), SY_OK) << error_.message;
  kernels_->unbind(device_, bound);
  for (sy_kernel* const kernel : {plain, inplace}) kernels_->release(device_, kernel);
  End();
}

TEST_F(PromiseTest, AKernelIsAsItWasAskedFor) {
  fake_.kernel.prepare = [](sy_device*, const sy_prepare_request* request, sy_kernel** made, sy_kernel_info* info,
                            sy_error* error) {
    const std::string op = request->op;
    if (op == "hungry") info->workspace_bytes = request->workspace_limit + 1;
    if (op == "leaving") info->residual_bytes = 8;
    if (op == "wild") info->inplace[0] = 1;
    if (request->inputs[0].dtype == 99) return SY_FAIL(error, SY_INVALID, "fake: a dtype of 99");
    return NewHandle(made);
  };
  Wrap();
  const std::pair<const char*, const char*> cases[] = {
      {"hungry", "1048577 bytes of workspace where at most 1048576 were offered"},
      {"leaving", "it leaves 8 bytes for a backward that does not follow"},
      {"wild", "output 0 is said to share the place of input 1 of 1"},
      {"random", "it reaches determinism 0 where 1 is required"},
  };
  for (const auto& [op, words] : cases) {
    negation_.info = {};
    negation_.info.header = SY_HEADER(sy_kernel_info);
    negation_.info.inplace = &negation_.inplace;
    negation_.inplace = -1;
    negation_.request.determinism = std::strcmp(op, "random") == 0 ? SY_DETERMINISM_RUN : SY_DETERMINISM_ANY;
    sy_kernel* const kernel = Prepare(op);
    ExpectPending({"the plugin broke a promise", words});
    kernels_->release(device_, kernel);
  }
  sy_kernel* kernel = nullptr;
  negation_.tensor.dtype = 99;
  EXPECT_EQ(kernels_->prepare(device_, &negation_.request, &kernel, &negation_.info, &error_), SY_INVALID);
  ExpectPending({"the plugin broke a promise", "SY_INVALID to a dtype that it does not know"});
  End();
}

TEST_F(PromiseTest, ADeterministicDeviceHasRepeatableKernels) {
  fake_.kernel.prepare = [](sy_device*, const sy_prepare_request* request, sy_kernel** made, sy_kernel_info* info,
                            sy_error*) {
    info->determinism = std::strcmp(request->op, "random") == 0 ? SY_DETERMINISM_ANY : SY_DETERMINISM_RUN;
    return NewHandle(made);
  };
  Wrap();
  sy_open_options options{};
  options.header = SY_HEADER(sy_open_options);
  options.deterministic = 1;
  sy_device* deterministic = nullptr;
  ASSERT_EQ(api_->open(outer_.instance, 0, &options, &deterministic, &error_), SY_OK);
  std::swap(device_, deterministic);
  sy_kernel* const repeatable = Prepare("repeatable");
  EXPECT_EQ(Pending(), "");
  sy_kernel* const random = Prepare("random");
  ExpectPending({"the plugin broke a promise", "random: it reaches determinism 0", "opened deterministic"});
  for (sy_kernel* const kernel : {repeatable, random}) kernels_->release(device_, kernel);
  api_->close(device_);
  std::swap(device_, deterministic);
  sy_kernel* const kernel = Prepare("random");
  EXPECT_EQ(Pending(), "");
  kernels_->release(device_, kernel);
  End();
}

TEST_F(PromiseTest, WhatABindingHasForItselfNobodyElseUses) {
  fake_.kernel.prepare = [](sy_device*, const sy_prepare_request*, sy_kernel** made, sy_kernel_info* info, sy_error*) {
    info->workspace_bytes = info->persistent_bytes = 64;
    return NewHandle(made);
  };
  Wrap();
  sy_buffer* extra = nullptr;
  ASSERT_EQ(api_->alloc(device_, 512, nullptr, &extra, &error_), SY_OK);
  sy_kernel* const kernel = Prepare("plain");
  const auto bind = [&](sy_place workspace, sy_place persistent, sy_bound** bound) {
    Places places(At(buffer_), At(buffer_, 256));
    places.binding.workspace = workspace;
    places.binding.persistent = persistent;
    return kernels_->bind(device_, kernel, &places.binding, bound, &launch_, &error_);
  };
  sy_bound *first = nullptr, *second = nullptr;
  ExpectRefused(bind(At(buffer_, 192), At(extra), &first), {"bind", "plain: workspace overlaps input 0"});
  ExpectRefused(bind(At(buffer_, 256), At(extra), &first), {"workspace overlaps output 0"});
  ExpectRefused(bind(At(extra), At(extra), &first), {"persistent overlaps workspace"});
  ASSERT_EQ(bind(At(extra), At(extra, 64), &first), SY_OK) << error_.message;
  ExpectRefused(bind(At(extra, 64), At(extra, 128), &second),
                {"workspace overlaps persistent of binding", "bind of plain"});
  ExpectRefused(bind(At(extra), At(extra, 64), &second), {"persistent overlaps persistent of binding"});
  ASSERT_EQ(bind(At(extra), At(extra, 128), &second), SY_OK) << "the workspace is anybody's: " << error_.message;
  kernels_->unbind(device_, first);
  kernels_->unbind(device_, second);
  ASSERT_EQ(bind(At(extra), At(extra, 64), &first), SY_OK) << error_.message;
  kernels_->unbind(device_, first);
  kernels_->release(device_, kernel);
  api_->free(device_, extra);
  EXPECT_EQ(Pending(), "");
  End();
}

TEST_F(PromiseTest, ConstantsAreNotWrittenByABinding) {
  Wrap();
  sy_buffer* shared = nullptr;
  ASSERT_EQ(api_->alloc(device_, 512, nullptr, &shared, &error_), SY_OK);
  sy_kernel *const plain = Prepare("plain"), *const tabled = Prepare("tabled");
  sy_bound* const first = Bind(tabled, At(shared));
  sy_bound* const second = Bind(tabled, At(shared));
  sy_bound* third = nullptr;
  Places onto(At(buffer_), At(shared)), from(At(shared), At(buffer_));
  ExpectRefused(kernels_->bind(device_, plain, &onto.binding, &third, &launch_, &error_),
                {"output 0 overlaps constants of binding", "bind of tabled"});
  ASSERT_EQ(kernels_->bind(device_, plain, &from.binding, &third, &launch_, &error_), SY_OK) << error_.message;
  for (sy_bound* const bound : {first, second, third}) kernels_->unbind(device_, bound);
  for (sy_kernel* const kernel : {tabled, plain}) kernels_->release(device_, kernel);
  api_->free(device_, shared);
  End();
}

}  // namespace
}  // namespace switchyard
