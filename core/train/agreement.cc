#include "core/train/agreement.h"

#include <string>

namespace switchyard {

Status VerifySettings(const TrainConfig& config, World& world) {
  std::string lines = fmt::format(
      "--resume={}\n--pretrained={}\n--reset_head={}\n--tp={}\n--sp={}\n--pp={}\n--pp_interleave={}\n--zero={}\n"
      "--shard_param_frac={}\n--offload={}\n--offload_optim_frac={}\n--offload_param_frac={}\n",
      config.resume ? "a checkpoint" : "", config.pretrained ? "weights" : "", config.reset_head, config.tp, config.sp,
      config.pp, config.pp_interleave, config.zero, config.shard_param_frac, config.offload, config.offload_optim_frac,
      config.offload_param_frac);
  lines += fmt::format("--ranks_per_node={}\n", config.ranks_per_node ? fmt::to_string(*config.ranks_per_node) : "");
  // Ranks that share a model each compute what is not divided: to the same bits, by the same kernels.
  if (world.mesh.tensor > 1) lines += fmt::format("--device={}\n", world.device->info().plugin);
  const auto settings = ToJson(config, {SettingKind::kProperty});
  for (const auto& [name, value] : settings.items()) lines += fmt::format("--{}={}\n", name, ValueText(value));
  SY_ASSIGN_OR_RETURN(const std::string difference, world.FirstDifference(lines));
  if (difference.empty()) return OkStatus();
  return InvalidArgument(
      "the settings are not the same on all ranks: {}; start all ranks with the same settings{}", difference,
      difference.find("--resume=") == std::string::npos ? ""
                                                        : ", where all see the folder of the run that they go on from");
}

Status VerifyData(const std::vector<std::pair<const char*, const Dataset*>>& data, World& world) {
  if (world.size() == 1) return OkStatus();
  std::string lines;
  for (const auto& [split, samples] : data)
    lines += fmt::format("{} {} samples, checksum {:08x}\n", split, samples->size(), samples->Checksum());
  SY_ASSIGN_OR_RETURN(const std::string difference, world.FirstDifference(lines));
  if (difference.empty()) return OkStatus();
  return FailedPrecondition("the data are not the same on all ranks: {}; give the same --data to every rank",
                            difference);
}

}  // namespace switchyard
