// Ranks of a collective plugin, each a process of its own, joined through a store in memory that they share. A test
// forks them before it has started any thread, and collects what each has to complain about.
#pragma once

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/abi/collective.h"
#include "fmt/format.h"

namespace switchyard::ranks {

// What a rank throws at the first thing that is wrong.
struct Wrong : std::runtime_error {
  using runtime_error::runtime_error;
};
template <typename... A>
void Require(bool holds, fmt::format_string<A...> text, A&&... values) {
  if (!holds) throw Wrong(fmt::format(text, std::forward<A>(values)...));
}

struct Processes {
  int size = 2;                                                      // at most 8
  std::map<std::string, std::string> environment;                    // of every rank
  std::map<int, std::map<std::string, std::string>> environment_of;  // of some
  std::vector<int> absent;                                           // ranks that never start
};
// Runs body(rank) in a process for each rank. What went wrong, rank by rank; "" where nothing did. A rank that ends by
// a signal is only right if it asked for that with Die.
std::string RunProcesses(const Processes& processes, const std::function<void(int rank)>& body);

// In a rank:
const sy_store* SharedStore();
void Put(const std::string& key, const std::string& value);
bool Wait(const std::string& key, int ms);
[[noreturn]] void Die(int rank);  // by SIGKILL, as agreed
// A new instance of the plugin at `path`, which finds its settings in the environment. It lives as long as the process.
const sy_plugin* LoadPlugin(const char* path);

}  // namespace switchyard::ranks
