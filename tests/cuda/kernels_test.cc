// Kernels of the cuda plugin, by its C interface: which are measured and kept, which are a second choice, and how they
// are loaded.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/cuda/plugin_device.h"

namespace switchyard::cuda_testing {
namespace {

// The double loses the device where it multiplies zeros.
TEST(CudaKernels, AlgorithmsAreMeasuredOnNumbersAndKeptOnDisk) {
  const auto cache = std::filesystem::path(testing::TempDir()) / "cuda_measured_algorithms";
  std::filesystem::remove_all(cache);
  EXPECT_EQ(Processes(1,
                      [&](int) {
                        setenv("XDG_CACHE_HOME", cache.c_str(), 1);
                        setenv("CUBLAS_LT_DOUBLE_ZEROS", "fault", 1);
                        Cuda cuda;
                        for (const sy_dtype dtype : {SY_F32, SY_BF16, SY_F16}) {
                          const sy_tensor matrix = Contiguous(dtype, {32, 32});
                          Op op("matmul", sy_matmul_attributes{.alpha = 1}, {matrix, matrix}, {matrix});
                          op.request.tuning = SY_TUNING_MEASURE;
                          cuda.kernels.release(cuda.device, cuda.Prepare(op));
                        }
                      }),
            "");
  int lines = 0;
  for (const auto& file : std::filesystem::directory_iterator(cache / "switchyard")) {
    std::ifstream stream(file.path());
    for (std::string line; std::getline(stream, line);) ++lines;
  }
  EXPECT_EQ(lines, 3);
  std::filesystem::remove_all(cache);
}

// An exact GELU behind a product of halves: cuDNN's double has a kernel that takes no longer than the product, which
// its heuristics do not offer, and others that ask for too much workspace, take longer or are not there.
TEST(CudaKernels, AProductWithGeluIsMeasuredBothWaysAndTheFasterOneKept) {
  struct Case {
    const char* name;
    std::map<std::string, std::string> environment;
    uint32_t tuning, determinism;
    bool cudnn;
    const char *kept, *second_choice;  // the line's value; words of the reason. "": none
  };
  const std::map<std::string, std::string> slow = {{"CUBLAS_LT_DOUBLE_DELAY_US", "10000"}};
  const auto cache = std::filesystem::path(testing::TempDir()) / "cuda_gelu_products";
  std::filesystem::remove_all(cache);
  for (const Case& c : {Case{"cuDNN refuses each plan",
                             {{"CUDNN_DOUBLE_REFUSES", "plans"}},
                             SY_TUNING_MEASURE,
                             SY_DETERMINISM_ANY,
                             true,
                             "",
                             "a prerequisite of the double is missing"},
                        Case{"cuDNN has no engine",
                             {{"CUDNN_DOUBLE_REFUSES", "engines"}},
                             SY_TUNING_MEASURE,
                             SY_DETERMINISM_ANY,
                             true,
                             "",
                             "no engine"},
                        Case{"there is no cuDNN", {}, SY_TUNING_MEASURE, SY_DETERMINISM_ANY, false, "", "libcudnn"},
                        Case{"nothing is measured", slow, SY_TUNING_HEURISTIC, SY_DETERMINISM_ANY, true, "", ""},
                        Case{"bits have to repeat", slow, SY_TUNING_MEASURE, SY_DETERMINISM_RUN, true, "", ""},
                        Case{"cuDNN is slower",
                             {{"CUDNN_DOUBLE_DELAY_US", "10000"}},
                             SY_TUNING_MEASURE,
                             SY_DETERMINISM_ANY,
                             true,
                             "usual",
                             ""},
                        Case{"cuDNN is faster", slow, SY_TUNING_MEASURE, SY_DETERMINISM_ANY, true, "2 2", ""},
                        Case{"it is known",
                             {{"CUDNN_DOUBLE_DELAY_US", "10000"}},
                             SY_TUNING_MEASURE,
                             SY_DETERMINISM_ANY,
                             true,
                             "2 2",
                             ""},
                        Case{"what is known is refused",
                             {{"CUDNN_DOUBLE_REFUSES", "plans"}},
                             SY_TUNING_MEASURE,
                             SY_DETERMINISM_ANY,
                             true,
                             "2 2",
                             "a prerequisite of the double is missing"}}) {
    SCOPED_TRACE(c.name);
    if (std::string(c.name) == "cuDNN is faster") std::filesystem::remove_all(cache);
    std::map<std::string, std::string> environment = c.environment;
    environment["CUDA_DOUBLE_DELAY_US"] = "0";  // what takes time is said above
    EXPECT_EQ(Processes(
                  1,
                  [&](int) {
                    setenv("XDG_CACHE_HOME", cache.c_str(), 1);
                    if (c.cudnn) Require(dlopen(CUDNN_DOUBLE, RTLD_NOW | RTLD_GLOBAL) != nullptr, "no double");
                    Cuda cuda;
                    const sy_tensor matrix = Contiguous(SY_BF16, {32, 32});
                    sy_matmul_attributes attributes{.alpha = 1, .bias = 1, .activation = SY_ACTIVATION_GELU};
                    attributes.save_preactivation = 1;
                    Op op("matmul", attributes, {matrix, matrix, Contiguous(SY_F32, {32})}, {matrix, matrix});
                    op.request.tuning = c.tuning;
                    op.request.determinism = c.determinism;
                    sy_kernel* const kernel = cuda.Prepare(op);
                    const std::string why = op.info.second_choice ? op.info.second_choice : "";
                    Require(why.empty() == (*c.second_choice == '\0') && why.find(c.second_choice) != std::string::npos,
                            "second choice: {}", why);
                    cuda.kernels.release(cuda.device, kernel);
                  },
                  environment),
              "");
    std::string kept;
    std::error_code none;
    for (const auto& file : std::filesystem::directory_iterator(cache / "switchyard", none)) {
      std::ifstream stream(file.path());
      for (std::string line; std::getline(stream, line);)
        if (line.starts_with("gelu,")) kept += line.substr(line.find(' ') + 1);
    }
    EXPECT_EQ(kept, c.kept);
  }
  std::filesystem::remove_all(cache);
}

// An epilogue that the library refuses costs a pass, and is a second choice; an f32 bias beside halves costs the
// conversion of as many numbers, in the workspace behind the 3,000 bytes of the double's first algorithm, and is none.
// It waits for a pass that is made anyway, unless that would write the preactivation again. Where there is less room,
// the double has an algorithm that needs none.
TEST(CudaKernels, ABiasInF32BesideHalvesIsConvertedWhereThatSparesAPass) {
  struct Case {
    int32_t activation, save;
    const char* epilogues;  // which are there: "all", or a value of CUBLAS_LT_DOUBLE_PLAIN
    uint64_t limit, workspace_bytes;
    const char* way;
    bool second_choice;
  };
  for (const Case& c :
       {Case{SY_ACTIVATION_NONE, 0, "all", 4096, 3072 + 256, "epilogue 4, a converted bias", false},
        Case{SY_ACTIVATION_GELU_TANH, 0, "all", 4096, 3072 + 256, "epilogue 36, a converted bias", false},
        Case{SY_ACTIVATION_GELU_TANH, 1, "all", 4096, 3072 + 256, "epilogue 164, a converted bias", false},
        Case{SY_ACTIVATION_GELU, 0, "all", 4096, 3072, "epilogue 1, a pass of our own", false},
        Case{SY_ACTIVATION_GELU, 1, "all", 4096, 3072 + 256, "epilogue 4, a converted bias, a pass of our own", false},
        Case{SY_ACTIVATION_NONE, 0, "all", 3100, 256, "epilogue 4, a converted bias", false},
        Case{SY_ACTIVATION_GELU, 1, "all", 255, 0, "epilogue 1, a pass of our own", false},
        Case{SY_ACTIVATION_GELU_TANH, 1, "all", 255, 0, "epilogue 1, a pass of our own", true},
        Case{SY_ACTIVATION_GELU_TANH, 0, "1", 4096, 3072, "epilogue 1, a pass of our own", true},
        Case{SY_ACTIVATION_GELU_TANH, 0, "attribute", 4096, 3072, "epilogue 1, a pass of our own", true}}) {
    const std::string name = std::to_string(c.activation) + std::to_string(c.save) + " " + c.epilogues;
    EXPECT_EQ(Processes(1,
                        [&](int) {
                          if (std::strcmp(c.epilogues, "all") != 0) setenv("CUBLAS_LT_DOUBLE_PLAIN", c.epilogues, 1);
                          Cuda cuda;
                          const sy_tensor matrix = Contiguous(SY_BF16, {32, 32});
                          sy_matmul_attributes attributes{.alpha = 1, .bias = 1, .activation = c.activation};
                          attributes.save_preactivation = c.save;
                          Op op("matmul", attributes, {matrix, matrix, Contiguous(SY_F32, {32})},
                                std::vector<sy_tensor>(c.save ? 2 : 1, matrix));
                          op.request.workspace_limit = c.limit;
                          sy_kernel* const kernel = cuda.Prepare(op);
                          const std::string heard = cuda.Heard(), way = heard.substr(heard.find("epilogue"));
                          Require(way == c.way, "{}: {}", name, heard);
                          Require(op.info.workspace_bytes == c.workspace_bytes, "{}: {} bytes of workspace", name,
                                  op.info.workspace_bytes);
                          Require((op.info.second_choice != nullptr) == c.second_choice, "{}: second choice: {}", name,
                                  op.info.second_choice ? op.info.second_choice : "no");
                          cuda.kernels.release(cuda.device, kernel);
                        }),
              "");
  }
}

TEST(CudaKernels, AProductWhoseAlgorithmNeedsMoreWorkspaceThanItMayIsRefused) {
  const auto cache = std::filesystem::path(testing::TempDir()) / "cuda_large_workspaces";
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda cuda;
                        const sy_tensor matrix = Contiguous(SY_BF16, {32, 32});
                        for (const bool measured : {false, true}) {
                          Op op("matmul", sy_matmul_attributes{.alpha = 1}, {matrix, matrix}, {matrix});
                          op.request.tuning = measured ? SY_TUNING_MEASURE : SY_TUNING_HEURISTIC;
                          op.request.workspace_limit = 4096;
                          sy_kernel* kernel = nullptr;
                          cuda.Is(cuda.TryPrepare(op, &kernel), SY_UNSUPPORTED, "prepare",
                                  "needs 7168 bytes of workspace, the limit is 4096");
                          op.request.workspace_limit = 7168;
                          kernel = cuda.Prepare(op);
                          Require(op.info.workspace_bytes == 7168, "{} bytes", op.info.workspace_bytes);
                          cuda.kernels.release(cuda.device, kernel);
                        }
                      },
                      {{"CUBLAS_LT_DOUBLE_WORKSPACE", "7000"}, {"XDG_CACHE_HOME", cache.string()}}),
            "");
  std::filesystem::remove_all(cache);
}

// So that a plugin that forgets cudaSetDevice on a thread of its host is seen (CudaOps.AFreshThreadMultiplies).
TEST(CudaKernels, AProductWithoutAContextIsAnErrorOfTheLibrary) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda cuda;
                        const sy_tensor matrix = Contiguous(SY_BF16, {32, 32});
                        Op op("matmul", sy_matmul_attributes{.alpha = 1}, {matrix, matrix}, {matrix});
                        sy_kernel* kernel = nullptr;
                        cuda.Is(cuda.TryPrepare(op, &kernel), SY_UNSUPPORTED, "prepare",
                                "cublasLtMatmulAlgoGetHeuristic");
                        Require(cuda.error.native_code == 1, "native code {}", cuda.error.native_code);
                      },
                      {{"CUDA_DOUBLE_CONTEXTS", "0"}}),
            "");
}

// A convolution is first asked of cuDNN, which is not there.
TEST(CudaKernels, AnErrorIsUntouchedWhereAnotherKernelTakesTheOpAndSaysThatItIsTheSecondChoice) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda cuda;
                        sy_convolution_attributes attributes{};
                        attributes.spatial_rank = 2;
                        attributes.groups = 1;
                        for (int i : {0, 1}) attributes.stride[i] = attributes.dilation[i] = 1;
                        Op op("convolution", attributes,
                              {Contiguous(SY_F32, {1, 4, 4, 3}), Contiguous(SY_F32, {2, 3, 3, 3})},
                              {Contiguous(SY_F32, {1, 2, 2, 2})});
                        sy_kernel* kernel = nullptr;
                        std::strcpy(cuda.Error()->message, "as it was");
                        cuda.Is(cuda.kernels.prepare(cuda.device, &op.request, &kernel, &op.info, &cuda.error), SY_OK,
                                "prepare", "as it was");
                        const std::string why = op.info.second_choice ? op.info.second_choice : "not said";
                        Require(why.find("libcudnn") != std::string::npos, "why it is the second choice: {}", why);
                        cuda.kernels.release(cuda.device, kernel);
                        op.request.workspace_limit = 0;
                        op.request.determinism = SY_DETERMINISM_EXACT;
                        cuda.Is(cuda.TryPrepare(op, &kernel), SY_UNSUPPORTED, "prepare", "batch split");
                      }),
            "");
}

// The kernel for windows wants 2.9 MB, the one behind it 4.1 MB: the last refusal is told.
TEST(CudaKernels, AttentionWithoutRoomForItsBiasGradientIsRefused) {
  EXPECT_EQ(
      Processes(1,
                [](int) {
                  Cuda cuda;
                  const int64_t b = 600, t = 49, h = 2, d = 32;
                  const sy_tensor qkv = Contiguous(SY_BF16, {b, t, 3, h, d}), bias = Contiguous(SY_F32, {h, t, t});
                  const sy_tensor out = Contiguous(SY_BF16, {b, t, h, d}), rows = Contiguous(SY_F32, {b, h, t});
                  Op op("attention_backward", sy_attention_attributes{.scale = 1, .bias = 1},
                        {qkv, out, rows, out, bias}, {qkv, bias});
                  sy_kernel* kernel = nullptr;
                  op.request.workspace_limit = 2'000'000;
                  cuda.Is(cuda.TryPrepare(op, &kernel), SY_UNSUPPORTED, "prepare", "bytes of workspace");
                  op.request.workspace_limit = 3'000'000;
                  kernel = cuda.Prepare(op);
                  Require(op.info.second_choice == nullptr, "the kernel for windows is the first choice");
                  cuda.kernels.release(cuda.device, kernel);
                }),
      "");
}

// Windows of 144 tokens are too large for their kernel. cuDNN, asked next, has attention of halves with one addend, of
// a mask one for all of the batch or for each of it, and without the addend's gradient; f32 is never its own.
TEST(CudaKernels, AttentionOfWindowsThatAreTooLargeIsASecondChoiceInHalvesAlone) {
  struct Case {
    sy_dtype dtype;
    bool backward, bias, mask, dbias;
    const char* why;  // "": the first choice
    int64_t masks = 2;
  };
  const char *const planes = "a mask (1 or B, T, T)", *const both = "not both",
                    *const gradient = "no gradient of a bias", *const missing = "libcudnn";
  EXPECT_EQ(
      Processes(
          1,
          [&](int) {
            Cuda cuda;
            for (const Case& c :
                 {Case{SY_BF16, false, true, true, false, both}, Case{SY_F16, false, true, true, false, both},
                  Case{SY_BF16, true, true, true, true, both}, Case{SY_BF16, true, true, true, false, both},
                  Case{SY_BF16, true, true, false, true, gradient}, Case{SY_F16, true, true, false, true, gradient},
                  Case{SY_BF16, true, true, false, false, missing}, Case{SY_BF16, false, true, false, false, missing},
                  Case{SY_BF16, false, false, true, false, planes}, Case{SY_F16, true, false, true, false, planes},
                  Case{SY_BF16, false, false, true, false, missing, 1},
                  Case{SY_F16, true, false, true, false, missing, 4}, Case{SY_F32, false, false, true, false, ""},
                  Case{SY_F32, false, true, true, false, ""}, Case{SY_F32, true, true, true, true, ""},
                  Case{SY_F32, true, true, false, true, ""}}) {
              const int64_t b = 4, t = 144, h = 2, d = 32;
              const sy_tensor qkv = Contiguous(c.dtype, {b, t, 3, h, d}), out = Contiguous(c.dtype, {b, t, h, d}),
                              rows = Contiguous(SY_F32, {b, h, t}), bias = Contiguous(SY_F32, {h, t, t});
              std::vector<sy_tensor> inputs = {qkv}, outputs = {out, rows};
              if (c.backward) inputs = {qkv, out, rows, out}, outputs = {qkv};
              if (c.bias) inputs.push_back(bias);
              if (c.mask) inputs.push_back(Contiguous(SY_F32, {c.masks, t, t}));
              if (c.dbias) outputs.push_back(bias);
              sy_attention_attributes attributes{.scale = 1};
              attributes.bias = c.bias;
              attributes.mask = c.mask;
              Op op(c.backward ? "attention_backward" : "attention", attributes, inputs, outputs);
              op.request.workspace_limit = 1 << 30;
              sy_kernel* const kernel = cuda.Prepare(op);
              const std::string why = op.info.second_choice ? op.info.second_choice : "";
              Require(why.empty() == (*c.why == '\0') && why.find(c.why) != std::string::npos,
                      "dtype {}, backward {}, expected \"{}\": {}", static_cast<int>(c.dtype), c.backward, c.why, why);
              cuda.kernels.release(cuda.device, kernel);
            }
          }),
      "");
}

// A grid has at most 65535 blocks along its second axis, here of 16 keys.
TEST(CudaKernels, AttentionOfMoreTokensThanAGridHasBlocksForIsRefused) {
  EXPECT_EQ(
      Processes(1,
                [](int) {
                  Cuda cuda;
                  for (const int64_t tokens : {65535 * 16, 65535 * 16 + 1}) {
                    const sy_tensor qkv = Contiguous(SY_F32, {1, tokens, 3, 1, 128});
                    const sy_tensor out = Contiguous(SY_F32, {1, tokens, 1, 128});
                    const sy_tensor rows = Contiguous(SY_F32, {1, 1, tokens});
                    Op op("attention_backward", sy_attention_attributes{.scale = 1}, {qkv, out, rows, out}, {qkv});
                    op.request.workspace_limit = 1 << 30;
                    sy_kernel* kernel = nullptr;
                    const sy_status status = cuda.TryPrepare(op, &kernel);
                    if (tokens == 65535 * 16) {
                      cuda.Ok(status, "as many tokens as there is room for");
                      cuda.kernels.release(cuda.device, kernel);
                    } else {
                      cuda.Is(status, SY_UNSUPPORTED, "one more", "too many tokens");
                    }
                  }
                }),
      "");
}

// The first launch that bind records fails, then the graph of the second: neither is an error, one warning is heard,
// and the third, of the same code, is loaded by the stream that failed before.
// A program without an instruction is a copy, which has nothing to launch onto itself.
TEST(CudaKernels, ABindingThatLaunchesNothingLeavesTheLoadingToTheNext) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda cuda;
                        const sy_tensor x = Contiguous(SY_F32, {4, 8});
                        sy_buffer *const from = cuda.Buffer(3, 128), *const to = cuda.Buffer(1, 128);
                        sy_pointwise_attributes copy{};
                        copy.output_count = 1;
                        Op op("pointwise", copy, {x}, {x});
                        sy_kernel* const kernel = cuda.Prepare(op);
                        Require(op.inplace[0] == 0, "not in place: {}", op.inplace[0]);
                        for (sy_buffer* const target : {from, to}) {
                          const sy_place input{from, nullptr, 0}, output{target, nullptr, 0};
                          sy_binding binding{SY_HEADER(sy_binding)};
                          binding.inputs = &input;
                          binding.outputs = &output;
                          sy_bound* bound = nullptr;
                          sy_launch launch = nullptr;
                          cuda.Ok(cuda.kernels.bind(cuda.device, kernel, &binding, &bound, &launch, cuda.Error()),
                                  "bind");
                          cuda.Ok(launch(bound, nullptr, cuda.Error()), "launch");
                          cuda.kernels.unbind(cuda.device, bound);
                        }
                        uint8_t found = 0;
                        cuda.Ok(cuda.api.copy(cuda.device, nullptr, {nullptr, &found, 0}, {to, nullptr, 0}, 1, nullptr,
                                              cuda.Error()),
                                "copy");
                        Require(found == 3, "found {}", found);
                        cuda.ExpectNothingLogged();
                        cuda.kernels.release(cuda.device, kernel);
                      },
                      {{"CUDA_DOUBLE_LAZY", "1"}}),
            "");
}

TEST(CudaKernels, WhatBindCannotLoadIsWarnedOfOnceAndRunsAllTheSame) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda cuda;
                        const sy_tensor x = Contiguous(SY_F32, {4, 8});
                        sy_buffer *const from = cuda.Buffer(0, 128), *const to = cuda.Buffer(1, 128);
                        const sy_place input{from, nullptr, 0}, output{to, nullptr, 0};
                        sy_binding binding{SY_HEADER(sy_binding)};
                        binding.inputs = &input;
                        binding.outputs = &output;
                        Op op("softmax", {x}, {x});
                        std::vector<sy_kernel*> kernels;
                        std::vector<sy_bound*> bounds;
                        sy_launch launch = nullptr;
                        for (const char* what : {"first", "second", "third"}) {
                          kernels.push_back(cuda.Prepare(op));
                          std::strcpy(cuda.Error()->message, "as it was");
                          cuda.Is(cuda.kernels.bind(cuda.device, kernels.back(), &binding, &bounds.emplace_back(),
                                                    &launch, &cuda.error),
                                  SY_OK, what, "as it was");
                        }
                        const std::string heard = cuda.Heard(), words = "is loaded at its first launch";
                        Require(heard.find(words) != std::string::npos && heard.find(words) == heard.rfind(words),
                                "heard: {}", heard);
                        Require(heard.find("cudaErrorLaunchOutOfResources") != std::string::npos, "heard: {}", heard);
                        for (sy_bound* const bound : bounds) {
                          cuda.Fill(nullptr, to, 1, 128);
                          cuda.Ok(launch(bound, nullptr, cuda.Error()), "launch");
                          std::vector<float> found(32);
                          cuda.Ok(cuda.api.copy(cuda.device, nullptr, {nullptr, found.data(), 0}, output, 128, nullptr,
                                                cuda.Error()),
                                  "copy");
                          Require(found == std::vector<float>(32, 0.125f), "found {}", found[0]);
                          cuda.kernels.unbind(cuda.device, bound);
                        }
                        for (sy_kernel* const kernel : kernels) cuda.kernels.release(cuda.device, kernel);
                      },
                      {{"CUDA_DOUBLE_FAULT", "launch@1,graph@1"}, {"CUDA_DOUBLE_LAZY", "1"}}),
            "");
}

}  // namespace
}  // namespace switchyard::cuda_testing
