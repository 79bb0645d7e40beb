// Of the cuda plugin: the versions that it shows, and instances that share nothing.
#include "tests/cuda/plugin_device.h"

namespace switchyard::cuda_testing {
namespace {

// Other versions than those of the headers: what the libraries answer is shown, and a missing one is left out.
TEST(CudaLibraries, AreShownInTheVersionsThatTheyAnswer) {
  for (const bool cudnn : {false, true}) {
    EXPECT_EQ(Processes(1,
                        [&](int) {
                          if (cudnn) Require(dlopen(CUDNN_DOUBLE, RTLD_NOW | RTLD_GLOBAL) != nullptr, "no double");
                          Cuda cuda;
                          sy_device_info info{SY_HEADER(sy_device_info)};
                          cuda.Ok(cuda.Query(&info), "query");
                          const std::string expected = "CUDA driver 77.6, runtime 66.5, cuBLASLt 55.4.3";
                          Require(info.libraries == expected + (cudnn ? ", cuDNN 44.3.2" : ""), "it says {}",
                                  info.libraries);
                          info.header.size = offsetof(sy_device_info, libraries);  // as version 2.0 asks
                          info.libraries = "untouched";
                          cuda.Ok(cuda.Query(&info), "query");
                          Require(std::string(info.libraries) == "untouched", "it wrote behind the struct of 2.0");
                        },
                        {{"CUDA_DOUBLE_DRIVER_VERSION", "77060"},
                         {"CUDA_DOUBLE_RUNTIME_VERSION", "66050"},
                         {"CUBLAS_LT_DOUBLE_VERSION", "550403"},
                         {"CUDNN_DOUBLE_VERSION", "440302"}}),
              "");
  }
}

// There is no cuDNN beside the double, which `open` says in the log.
TEST(CudaInstances, EachLogsToItsOwnHost) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Listener* const listeners[] = {new Listener, new Listener};
                        const sy_plugin plugins[] = {NewInstance(*listeners[0]), NewInstance(*listeners[1])};
                        for (int i : {0, 1}) {
                          sy_instance* const instance = plugins[i].instance;
                          const auto* api =
                              static_cast<const sy_device_v2*>(plugins[i].get_interface(instance, "device/2"));
                          sy_device* device = nullptr;
                          Require(api->open(instance, 0, nullptr, &device, nullptr) == SY_OK, "open");
                          api->close(device);
                          Require(listeners[i]->heard.find("libcudnn") != std::string::npos, "heard: {}",
                                  listeners[i]->heard);
                          Require(listeners[1 - i]->heard.empty(), "the other heard: {}", listeners[1 - i]->heard);
                          listeners[i]->heard.clear();
                        }
                      }),
            "");
}

}  // namespace
}  // namespace switchyard::cuda_testing
