// What semaphore/1 and peer/1 promise beyond what one process of the conformance kit sees.
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/cuda/plugin_device.h"

namespace switchyard::cuda_testing {
namespace {

TEST(CudaSemaphore, HostAndStreamsWaitForEachOther) {
  EXPECT_EQ(
      Processes(1,
                [](int) {
                  Cuda cuda, second(1);
                  sy_stream *const stream = cuda.Stream(), *const other = second.Stream();
                  sy_buffer* const buffer = cuda.Buffer(1);
                  sy_semaphore* const semaphore = cuda.Semaphore();
                  const sy_semaphore_v1& api = cuda.semaphores;
                  Require(cuda.CountOf(semaphore) == 0, "it does not start at 0");
                  cuda.Is(api.wait(cuda.device, semaphore, 1, 30, cuda.Error()), SY_TIMEOUT, "wait", "30 ms");
                  cuda.Ok(api.wait(cuda.device, semaphore, 0, 0, cuda.Error()), "wait for what is reached");
                  // Waits that are asked for before anybody raises it: of a stream, and of the host.
                  cuda.Ok(api.stream_wait(cuda.device, stream, semaphore, 1ull << 40, cuda.Error()), "stream_wait");
                  cuda.Fill(stream, buffer, 2);
                  cuda.Ok(api.stream_signal(cuda.device, stream, semaphore, 1ull << 41, cuda.Error()), "stream_signal");
                  std::atomic<bool> woken{false};
                  std::thread waiter([&] {
                    sy_error error{SY_HEADER(sy_error)};
                    woken = api.wait(cuda.device, semaphore, 1ull << 41, 10000, &error) == SY_OK;
                  });
                  cuda.Ok(api.signal(cuda.device, semaphore, (1ull << 40) - 1, cuda.Error()), "signal");
                  std::this_thread::sleep_for(std::chrono::milliseconds(100));
                  Require(cuda.CountOf(semaphore) == (1ull << 40) - 1, "the stream ran on at a count one too low");
                  cuda.ExpectContent(buffer, 1, "held up");
                  Require(!woken, "the host's wait ended too early");
                  cuda.Ok(api.signal(cuda.device, semaphore, (1ull << 40) + 3, cuda.Error()), "signal");
                  waiter.join();
                  Require(woken, "the host's wait did not end");
                  cuda.ExpectContent(buffer, 2, "behind the wait");
                  Require(cuda.CountOf(semaphore) == 1ull << 41, "the stream did not raise it");
                  for (const uint64_t value : {uint64_t{7}, uint64_t{1} << 41})
                    cuda.Is(api.signal(cuda.device, semaphore, value, cuda.Error()), SY_INVALID, "signal");
                  // A count is reached for streams of another device too.
                  second.Ok(api.stream_wait(second.device, other, semaphore, 9, second.Error()), "stream_wait");
                  second.Synchronize(other);
                  cuda.Synchronize(stream);
                  api.destroy(cuda.device, semaphore);
                  cuda.ExpectNothingLogged();
                }),
      "");
}

TEST(CudaSemaphore, WithoutMemoryOperationsOfTheDriverThereIsNone) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda cuda;
                        sy_semaphore* semaphore = nullptr;
                        cuda.Is(cuda.semaphores.create(cuda.device, nullptr, &semaphore, cuda.Error()), SY_UNSUPPORTED,
                                "create", "64-bit stream memory operations");
                      },
                      {{"CUDA_DOUBLE_MEMORY_OPS", "0"}}),
            "");
}

Bytes Told(const std::string& key) {
  Bytes text(SY_MEMORY_DESCRIPTION_BYTES);
  uint32_t bytes = 0;
  Require(ranks::Wait(key, 20000), "{} never came", key);
  const sy_store* const store = ranks::SharedStore();
  Require(
      store->get(store->context, key.c_str(), text.data(), SY_MEMORY_DESCRIPTION_BYTES, &bytes, 0, nullptr) == SY_OK,
      "{} is not there", key);
  text.resize(bytes);
  return text;
}

TEST(CudaPeer, AnotherProcessReadsAndWritesWhatWasExported) {
  EXPECT_EQ(Processes(2,
                      [](int rank) {
                        Cuda cuda(rank);
                        if (rank == 0) {
                          sy_buffer* const buffer = cuda.Buffer(5, kBytes, true);
                          const Bytes description = cuda.Export(buffer);
                          ranks::Put("memory", std::string(description.begin(), description.end()));
                          Require(ranks::Wait("written", 20000), "nobody wrote");
                          cuda.ExpectContent(buffer, 6, "written by the other process");
                          cuda.Fill(nullptr, buffer, 7);
                          ranks::Put("changed", "yes");
                          Require(ranks::Wait("freed", 20000), "nobody freed");
                          cuda.ExpectContent(buffer, 7, "after the other process freed it");
                          cuda.api.free(cuda.device, buffer);
                          return;
                        }
                        // Twice: the handle is opened once, and closed with the last buffer of it.
                        const Bytes description = Told("memory");
                        sy_buffer *const first = cuda.Import(description), *const second = cuda.Import(description);
                        sy_buffer* const own = cuda.Buffer(0);
                        cuda.Ok(cuda.api.copy(cuda.device, nullptr, {own, nullptr, 0}, {first, nullptr, 0}, kBytes,
                                              nullptr, cuda.Error()),
                                "copy");
                        cuda.ExpectContent(own, 5, "read from the other process");
                        cuda.Fill(nullptr, first, 6);
                        cuda.api.free(cuda.device, first);
                        cuda.ExpectContent(second, 6, "after one of two was freed");
                        ranks::Put("written", "yes");
                        Require(ranks::Wait("changed", 20000), "nobody changed it");
                        cuda.ExpectContent(second, 7, "what the owner wrote");
                        cuda.Is(cuda.api.copy(cuda.device, nullptr, {own, nullptr, 0}, {second, nullptr, 1}, kBytes,
                                              nullptr, cuda.Error()),
                                SY_INVALID, "a copy beyond its end");
                        cuda.api.free(cuda.device, second);
                        sy_buffer* const again = cuda.Import(description);
                        cuda.ExpectContent(again, 7, "opened again");
                        cuda.api.free(cuda.device, again);
                        cuda.ExpectNothingLogged();
                        ranks::Put("freed", "yes");
                      }),
            "");
}

TEST(CudaPeer, AnotherDeviceOfTheProcessReachesIt) {
  EXPECT_EQ(Processes(1,
                      [](int) {
                        Cuda owner, other(1);
                        sy_buffer* const buffer = owner.Buffer(5, kBytes, true);
                        for (Cuda* const one : {&owner, &other}) {
                          sy_buffer* const imported = one->Import(owner.Export(buffer));
                          one->ExpectContent(imported, 5, "imported");
                          one->Fill(nullptr, imported, 5);
                          one->api.free(one->device, imported);
                        }
                        owner.ExpectContent(buffer, 5, "after the importers freed it");
                        owner.ExpectNothingLogged();
                        other.ExpectNothingLogged();
                      }),
            "");
}

// Four devices of which each may reach one other.
TEST(CudaPeer, MoreDevicesThanMayReachEachOtherAreOpenedAllTheSame) {
  EXPECT_EQ(
      Processes(1,
                [](int) {
                  Listener& listener = *new Listener;
                  const sy_plugin plugin = NewInstance(listener);
                  const auto* api = static_cast<const sy_device_v2*>(plugin.get_interface(plugin.instance, "device/2"));
                  for (const int index : {0, 1, 2, 3}) {
                    listener.heard.clear();
                    sy_device* device = nullptr;
                    sy_error error{SY_HEADER(sy_error)};
                    const sy_status status = api->open(plugin.instance, index, nullptr, &device, &error);
                    Require(status == SY_OK, "open of device {} answered {}: {}", index, status, error.message);
                    const size_t told = listener.heard.find("go through the host");
                    Require((told != std::string::npos) == (index == 2), "device {}: {}", index, listener.heard);
                    const bool why = listener.heard.find("cudaErrorTooManyPeers") != std::string::npos;
                    Require(why == (index == 2), "device {}: {}", index, listener.heard);
                    Require(listener.heard.find("through the host", told + 20) == std::string::npos || index != 2,
                            "more than once: {}", listener.heard);
                    sy_buffer* buffer = nullptr;
                    Require(api->alloc(device, 100, nullptr, &buffer, &error) == SY_OK, "alloc: {}", error.message);
                  }
                },
                {{"CUDA_DOUBLE_DEVICES", "4"}, {"CUDA_DOUBLE_PEER_LIMIT", "1"}}),
      "");
}

TEST(CudaPeer, WhatCannotBeSharedIsRefused) {
  EXPECT_EQ(
      Processes(1,
                [](int) {
                  Cuda owner, other(1);
                  sy_buffer *const plain = owner.Buffer(5), *const shared = owner.Buffer(5, 10, true);
                  Bytes room(SY_MEMORY_DESCRIPTION_BYTES);
                  uint32_t bytes = 0;
                  owner.Is(owner.peers.export_memory(owner.device, plain, room.data(), SY_MEMORY_DESCRIPTION_BYTES,
                                                     &bytes, owner.Error()),
                           SY_INVALID, "export", "exportable");
                  owner.Is(owner.peers.export_memory(owner.device, shared, room.data(), 20, &bytes, owner.Error()),
                           SY_INVALID, "export", "20 bytes");
                  const Bytes description = owner.Export(shared);
                  sy_buffer* imported = nullptr;
                  other.Is(other.TryImport(description, &imported), SY_UNSUPPORTED, "import", "device 1 cannot reach");
                  owner.api.free(owner.device, owner.Import(description));
                  owner.Is(owner.TryImport(Bytes(description.size(), 3), &imported), SY_INVALID, "import of noise");
                  owner.Is(owner.TryImport(Bytes(description.begin(), description.end() - 1), &imported), SY_INVALID,
                           "import of a part");
                },
                {{"CUDA_DOUBLE_PEERS", "0"}}),
      "");
}

TEST(CudaPeer, MemoryOfAProcessThatHasEndedIsRefused) {
  EXPECT_EQ(Processes(2,
                      [](int rank) {
                        Cuda cuda;
                        if (rank == 0) {
                          const Bytes description = cuda.Export(cuda.Buffer(5, kBytes, true));
                          ranks::Put("memory", std::string(description.begin(), description.end()));
                          ranks::Die(rank);
                        }
                        const Bytes description = Told("memory");
                        sy_status status = SY_OK;
                        for (int look = 0; look < 1000 && status == SY_OK; ++look) {
                          sy_buffer* imported = nullptr;
                          status = cuda.TryImport(description, &imported);
                          if (status == SY_OK) cuda.api.free(cuda.device, imported);
                          std::this_thread::sleep_for(std::chrono::milliseconds(5));
                        }
                        cuda.Is(status, SY_UNSUPPORTED, "import", "cudaIpcOpenMemHandle");
                      }),
            "");
}

}  // namespace
}  // namespace switchyard::cuda_testing
