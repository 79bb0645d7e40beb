#include "backends/null/recording.h"

#include <algorithm>
#include <utility>

#include "backends/null/device.h"
#include "core/abi/boundary.h"

namespace switchyard {

size_t Recording::Join(std::weak_ptr<Stream> stream) {
  const std::lock_guard lock(mutex_);
  streams_.push_back(std::move(stream));
  tails_.emplace_back();
  return tails_.size() - 1;
}

size_t Recording::Add(size_t branch, Command command) {
  const std::lock_guard lock(mutex_);
  const size_t place = nodes_.size();
  nodes_.push_back({std::move(command), branch, std::exchange(tails_[branch], {place})});
  return place;
}

void Recording::Wait(size_t branch, size_t command) {
  const std::lock_guard lock(mutex_);
  tails_[branch].push_back(command);
}

void Recording::Spoil() {
  const std::lock_guard lock(mutex_);
  spoiled_ = true;
}

std::vector<std::shared_ptr<Stream>> Recording::Streams() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Stream>> streams;
  for (size_t branch = 1; branch < streams_.size(); ++branch) {
    if (auto stream = streams_[branch].lock()) streams.push_back(std::move(stream));
  }
  return streams;
}

sy_status Recording::Finish(bool last_branch_first, std::shared_ptr<const Graph>* graph, sy_error* error) {
  const std::lock_guard lock(mutex_);
  if (spoiled_) return Refuse(error, SY_UNSUPPORTED, "something that cannot be captured was asked for");
  std::vector<char> joined(nodes_.size(), 0);
  std::vector<size_t> open = tails_[0];
  while (!open.empty()) {
    const size_t node = open.back();
    open.pop_back();
    if (std::exchange(joined[node], 1)) continue;
    open.insert(open.end(), nodes_[node].behind.begin(), nodes_[node].behind.end());
  }
  if (std::find(joined.begin(), joined.end(), 0) != joined.end())
    return Refuse(error, SY_UNSUPPORTED, "the stream of begin has not waited for all that other streams recorded");
  auto made = std::make_shared<Graph>();
  std::vector<std::vector<size_t>> of_branch(tails_.size());
  for (size_t node = 0; node < nodes_.size(); ++node) of_branch[nodes_[node].branch].push_back(node);
  std::vector<size_t> next(tails_.size(), 0);
  std::vector<char> done(nodes_.size(), 0);
  const auto ready = [&](size_t branch) {
    if (next[branch] == of_branch[branch].size()) return false;
    const std::vector<size_t>& behind = nodes_[of_branch[branch][next[branch]]].behind;
    return std::all_of(behind.begin(), behind.end(), [&](size_t node) { return done[node] != 0; });
  };
  while (made->commands.size() < nodes_.size()) {
    size_t branch = last_branch_first ? tails_.size() - 1 : 0;
    while (!ready(branch)) branch += last_branch_first ? size_t(-1) : 1;  // edges lead forwards, so there is one
    const size_t node = of_branch[branch][next[branch]++];
    done[node] = 1;
    made->commands.push_back(std::move(nodes_[node].command));
  }
  *graph = std::move(made);
  return SY_OK;
}

}  // namespace switchyard
