#include "core/train/loaders.h"

#include <utility>

namespace switchyard {

StatusOr<std::unique_ptr<Loader>> MakeLoader(const TrainConfig& c, std::unique_ptr<const SampleSource> source,
                                             const World& world, bool train) {
  LoaderOptions o;
  o.batch_size = c.batch_size;
  o.train = train;
  o.rank = world.data_rank();
  o.world = world.data_size();
  o.seed = c.seed;
  o.workers = c.workers;
  o.prefetch = c.prefetch;
  o.max_bad_samples = c.max_bad_samples;
  return Loader::Create(std::move(source), o);
}

}  // namespace switchyard
