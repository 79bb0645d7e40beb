#include "core/train/without_effect.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "core/train/mixed_precision.h"
#include "core/train/recipe.h"

namespace switchyard {
namespace {

constexpr char kIntensities[] = "crop_flip";  // the augmentation that changes intensities of volumes

struct BesideRule {
  std::vector<const char*> settings;
  bool matters;
  std::string beside, belongs_to;
};

void Follow(std::span<const BesideRule> rules, absl::FunctionRef<bool(const std::string&)> chosen,
            std::vector<std::string>* sentences) {
  for (const BesideRule& rule : rules) {
    for (const char* setting : rule.settings) {
      if (rule.matters || !chosen(setting)) continue;
      sentences->push_back(
          fmt::format("--{} has no effect with {}: it belongs to {}", setting, rule.beside, rule.belongs_to));
    }
  }
}

// "" where it begins before the run ends.
std::string CompressionThatNeverBegins(const TrainConfig& c, int64_t updates) {
  if (!c.powersgd_compression || c.start_compress_iter < updates) return "";
  return fmt::format(
      "--powersgd_compression has no effect: it would begin after {} updates (--start_compress_iter), and the run has "
      "{}",
      c.start_compress_iter, updates);
}

}  // namespace

std::vector<std::string> SettingsOfOtherTasks(const TrainConfig& c, Content content,
                                              absl::FunctionRef<bool(const std::string& setting)> chosen) {
  const bool labelled = content == Content::kLabelledImages, volumes = content == Content::kMaskedVolumes;
  const std::string model = "--model=" + c.model;
  const BesideRule rules[] = {
      {{"label_smoothing", "color_jitter", "mean", "std", "interpolation"}, !volumes, model, "models of images"},
      {{"train_interpolation"}, labelled, model, "models of labelled images"},
      {{"crop_ratio"}, !volumes, model, "models of labelled images"},
      {{"loss", "entropy_weight", "dice_weight"}, !labelled, model, "models that learn from masks"},
      {{"normalization", "intensity_scale", "intensity_shift", "window_overlap", "window_weights"},
       volumes,
       model,
       "models of volumes"},
  };
  std::vector<std::string> sentences;
  Follow(rules, chosen, &sentences);
  return sentences;
}

std::vector<std::string> NamesOfUpdates() {
  const std::set<std::string> others = {"epochs",     "steps", "offload", "offload_optim_frac", "offload_param_frac",
                                        "offload_dir"};
  std::vector<std::string> names;
  for (const Setting& row : TrainSettings()) {
    const bool updates = row.group == "Optimizer and schedule" && row.name != "label_smoothing";
    if (updates || row.kind == SettingKind::kAct || others.contains(row.name)) names.push_back(row.name);
  }
  return names;
}

std::vector<std::string> SettingsOfUpdates(const std::string& command,
                                           absl::FunctionRef<bool(const std::string& setting)> chosen) {
  std::vector<std::string> sentences;
  for (const std::string& name : NamesOfUpdates()) {
    if (chosen(name))
      sentences.push_back(fmt::format("--{} has no effect with {}: it belongs to train", name, command));
  }
  return sentences;
}

std::vector<std::string> SettingsWithoutEffect(const TrainConfig& c, const RunFacts& facts,
                                               absl::FunctionRef<bool(const std::string& setting)> chosen) {
  const bool sgd = c.optimizer == "sgd", lamb = c.optimizer == "lamb", lars = c.optimizer == "lars";
  const bool adaptive = !sgd && !lars, falls = c.schedule == "multistep" || c.schedule == "step";
  const bool to_minimum = c.schedule == "linear" || c.schedule == "cosine";
  const bool made_up = c.dataset == "shapes" || c.dataset == "synthetic";
  const std::string optimizer = "--optimizer=" + c.optimizer, schedule = "--schedule=" + c.schedule;
  const bool volumes = facts.content == Content::kMaskedVolumes, augments = c.augmentation.value_or("none") != "none";
  const bool labelled = facts.content == Content::kLabelledImages;
  const std::string loss = c.loss.value_or(volumes ? "" : "ce");
  const std::string augmentation = "--augmentation=" + c.augmentation.value_or("none");
  const bool offloads = c.offload != "none", several = facts.ranks > 1 || c.tp > 1 || c.pp > 1;
  const bool varies = c.schedule != "constant" || HasWarmup(c);
  const BesideRule rules[] = {
      {{"momentum"}, sgd || lars, optimizer, "sgd and lars"},
      {{"dampening"}, sgd, optimizer, "sgd"},
      {{"dampening"}, !sgd || c.momentum != 0, "--momentum=0", "a momentum"},
      {{"beta1", "beta2"}, adaptive, optimizer, "adam, adamw and lamb"},
      {{"eps"}, !sgd, optimizer, "adam, adamw, lamb and lars"},
      {{"adam_w_mode", "grad_averaging", "use_nvlamb"}, lamb, optimizer, "lamb"},
      {{"max_grad_norm"}, lamb, optimizer, "lamb; --clip clips gradients of the others"},
      {{"adam_w_mode"}, !lamb || c.weight_decay != 0, "--weight_decay=0", "weight decay"},
      {{"clip"}, !lamb, optimizer, "the other optimizers; lamb clips by --max_grad_norm"},
      {{"trust_coefficient"}, lars, optimizer, "lars"},
      {{"trust_coefficient"}, !lars || c.weight_decay != 0, "--weight_decay=0", "weight decay"},
      {{"microbatch_size"},
       !c.num_microbatches,
       fmt::format("--num_microbatches={}", c.num_microbatches.value_or(0)),
       "runs that do not say how many micro-batches there are"},
      {{"bucket_mb"}, !c.delay_allreduce, "--delay_allreduce", "reductions beside the backward pass"},
      {{"pp_interleave"}, c.pp > 1, "--pp=1", "stages (--pp)"},
      {{"matrix_approximation_rank", "start_compress_iter"},
       c.powersgd_compression,
       "--powersgd_compression=0",
       "--powersgd_compression"},
      {{"shard_param_frac"}, c.zero == 3, fmt::format("--zero={}", c.zero), "--zero=3"},
      {{"pin_memory"},
       facts.pins_batches,
       "--device=" + c.device,
       "devices that copy batches beside computing and offer pinned host memory"},
      {{"offload"},
       facts.own_memory || !offloads,
       "--device=" + c.device,
       "devices that have memory beside the host's"},
      {{"offload_optim_frac", "offload_param_frac"},
       facts.own_memory || !offloads,
       "--device=" + c.device,
       "devices that have memory beside the host's"},
      {{"offload"},
       adaptive || c.momentum != 0 || c.offload != "optimizer",
       "--momentum=0",
       "optimizers that keep moments"},
      {{"offload_optim_frac"}, offloads, "--offload=" + c.offload, "--offload=optimizer and --offload=all"},
      {{"offload_dir"}, offloads, "--offload=" + c.offload, "--offload=optimizer and --offload=all"},
      {{"offload_param_frac"}, c.offload == "all", "--offload=" + c.offload, "--offload=all"},
      {{"per_epoch"}, varies, schedule, "schedules that change the rate"},
      {{"mixup_prob", "mixup_mode", "mix_on"}, c.mixup > 0 || c.cutmix > 0, "--mixup=0 --cutmix=0", "mixup and cutmix"},
      {{"mixup_switch_prob"}, c.mixup > 0 && c.cutmix > 0, "one of mixup and cutmix alone", "both together"},
      {{"cutmix_minmax"}, c.cutmix > 0, "--cutmix=0", "cutmix"},
      {{"milestones"}, c.schedule == "multistep", schedule, "multistep"},
      {{"step_size"}, c.schedule == "step", schedule, "step"},
      {{"gamma"}, falls, schedule, "multistep and step"},
      {{"min_lr"}, to_minimum, schedule, "cosine and linear"},
      {{"warmup_lr"}, HasWarmup(c), "--warmup=" + c.warmup, "a warm-up"},
      {{"warmup_lr"}, c.schedule != "cosine_annealing" || !HasWarmup(c), schedule, "the other schedules"},
      {{"base_batch_size", "scale_lr_factor"}, c.scale_lr != "none", "--scale_lr=none", "--scale_lr"},
      {{"train_size", "validation_size"}, made_up, "--dataset=" + c.dataset, "shapes and synthetic"},
      {{"data"}, !made_up, "--dataset=" + c.dataset, "datasets that have files"},
      {{"overlap"}, several || offloads, "one rank", "runs of several, and --offload"},
      {{"master_addr"}, several, "one rank", "several, as `switchyard launch --nproc_per_node=N train …` starts them"},
      {{"hierarchical_allreduce"},
       facts.ranks == 1 || facts.hierarchy,
       "these nodes",
       "several nodes, with more than one rank on some; --ranks_per_node says how many a node is to have"},
      {{"ranks_per_node"}, c.hierarchical_allreduce, "one sum over all ranks", "--hierarchical_allreduce and explain"},
      {{"sync_batchnorm", "broadcast_buffers", "allreduce_dtype", "grad_predivide", "delay_allreduce",
        "hierarchical_allreduce", "zero"},
       facts.ranks > 1,
       c.tp > 1   ? fmt::format("--tp={}", c.tp)
       : c.pp > 1 ? fmt::format("--pp={}", c.pp)
                  : "one rank",
       "runs whose ranks divide the data"},
      {{"sync_batchnorm", "broadcast_buffers"}, facts.batch_norms, "--model=" + c.model, "models with batch norms"},
      {{"color_jitter"}, !c.auto_augment, "--auto_augment", "runs without it, as in timm"},
      {{"train_interpolation"},
       facts.content != Content::kLabelledImages || augments || c.auto_augment,
       augmentation,
       "crops and RandAugment"},
      {{"intensity_scale", "intensity_shift"},
       !volumes || c.augmentation.value_or(kIntensities) == kIntensities,
       augmentation,
       std::string("--augmentation=") + kIntensities},
      {{"dice_weight"}, labelled || loss != "ce", "--loss=ce", "losses with a Dice part"},
      {{"entropy_weight"}, labelled || volumes || loss != "ce", "--loss=ce", "losses with a Dice part"},
      {{"erase_mode", "erase_count"}, c.erase_prob > 0, "--erase_prob=0", "erasing"},
      {{"kernel_opt"}, !c.kernel_opt || !c.deterministic, "--deterministic", "runs with --deterministic=0"},
      {{"kernel_opt"},
       !c.kernel_opt || c.tp <= 1,
       fmt::format("--tp={}", c.tp),
       "runs whose ranks do not divide layers, since those compute alike what each has whole"},
      {{"count_second_choice"},
       !c.count_second_choice || std::isfinite(c.max_fallback),
       "--max_fallback=inf",
       "runs that allow fewer fallbacks"},
      {{"devices"}, c.mode == "dp", "--mode=" + c.mode, "--mode=dp, one process with several devices"},
      {{"epochs"}, !c.steps, fmt::format("--steps={}", c.steps.value_or(0)), "runs without --steps"},
  };
  const auto mixed = MixedPrecisionOf(c);
  const bool scaler = mixed.ok() && mixed->loss_scale.dynamic;
  const std::string scale = c.loss_scale ? "--loss_scale=" + *c.loss_scale : "--precision=" + c.precision;
  std::vector<std::string> sentences = SettingsOfOtherTasks(c, facts.content, chosen);
  if (scaler && c.on_nonfinite == "skip" && chosen("on_nonfinite")) {
    sentences.push_back(fmt::format(
        "--on_nonfinite=skip has no effect with {}: a dynamic loss scale leaves such updates out by itself, and ends "
        "the run where it has come down to its floor",
        scale));
  }
  for (const char* setting : ScalerSettings()) {
    if (!scaler && chosen(setting))
      sentences.push_back(
          fmt::format("--{} has no effect with {}: it belongs to --loss_scale=dynamic", setting, scale));
  }
  Follow(rules, chosen, &sentences);
  const std::string never = CompressionThatNeverBegins(c, facts.updates);
  if (!never.empty() && chosen("powersgd_compression")) sentences.push_back(never);
  if (c.lr == 0 && c.schedule != "cosine_annealing" && chosen("lr"))
    sentences.push_back("with --lr=0 nothing is learned: no update changes a weight");
  if (facts.updates_per_epoch == 0) return sentences;
  const int64_t epochs = (facts.updates + facts.updates_per_epoch - 1) / facts.updates_per_epoch;
  if (c.save_every && *c.save_every > facts.updates && chosen("save_every")) {
    sentences.push_back(fmt::format("--save_every={}: the run has {} updates, and is saved at its end alone",
                                    *c.save_every, facts.updates));
  }
  if (c.eval_every > epochs && chosen("eval_every")) {
    sentences.push_back(fmt::format("--eval_every={}: the run ends in epoch {}, and is evaluated at its end alone",
                                    c.eval_every, epochs));
  }
  // The first change comes too late.
  const auto too_late = [&](const char* setting, int64_t first) {
    if (first < facts.updates || !chosen(setting)) return;
    sentences.push_back(
        fmt::format("--{} has no effect: the rate would first change after {} updates, and the run has {}", setting,
                    first, facts.updates));
  };
  if (const auto first = FirstFall(c, facts.updates, facts.updates_per_epoch))
    too_late(c.schedule == "step" ? "step_size" : "milestones", *first);
  const std::vector<int64_t> milestones = FallsOfMilestones(c, facts.updates, facts.updates_per_epoch);
  const auto behind =
      std::count_if(milestones.begin(), milestones.end(), [&](int64_t at) { return at >= facts.updates; });
  if (behind > 0 && behind < static_cast<int64_t>(milestones.size()) && chosen("milestones")) {
    sentences.push_back(fmt::format("--milestones: {} of {} have no effect: they lie behind the run's {} updates",
                                    behind, milestones.size(), facts.updates));
  }
  if (c.per_epoch && varies && facts.updates <= facts.updates_per_epoch && chosen("per_epoch")) {
    sentences.push_back(
        fmt::format("with --per_epoch the rate never changes: the run has {} updates, its first epoch {}",
                    facts.updates, facts.updates_per_epoch));
  }
  return sentences;
}

}  // namespace switchyard
