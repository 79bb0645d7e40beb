#include "core/train/setting_aliases.h"

namespace switchyard {

// A switch of theirs is "true" where it stands without a value. What is not here is spelled as ours is: --batch-size,
// --weight-decay, --device_list, --loss_scale, --kernel-opt …
const std::vector<Alias>& TrainAliases() {
  const auto compression = [](const char* name, const char* half) {
    return Alias{.name = name,
                 .of = "AIAK",
                 .setting = "allreduce_dtype",
                 .values = {{"true", half}, {"false", "fp32"}},
                 .off = "fp32"};
  };
  static const auto& aliases = *new std::vector<Alias>{
      // torch.distributed and its examples
      {.name = "dist_backend",
       .of = "torch.distributed",
       .setting = "collective",
       .values = {{"nccl", "nccl"}, {"hccl", "hccl"}, {"mpi", "mpi"}, {"gloo", "tcp"}}},
      {.name = "wd", .of = "torch.distributed", .setting = "weight_decay"},
      // Mixed precision of apex, TorchAcc and AIAK
      {.name = "opt_level", .of = "apex", .setting = "amp"},
      {.name = "amp_level", .of = "TorchAcc", .setting = "amp"},
      {.name = "AIAK_FUSED_OPTIMIZER", .of = "AIAK", .setting = "fused_optimizer"},
      {.name = "AIAK_HIERARCHICAL_ALLREDUCE", .of = "AIAK", .setting = "hierarchical_allreduce"},
      compression("fp16_compression", "fp16"),
      compression("AIAK_FP16_COMPRESSION", "fp16"),
      compression("bf16_compression", "bf16"),
      compression("AIAK_BF16_COMPRESSION", "bf16"),
      {.name = "AIAK_POWERSGD_COMPRESSION", .of = "AIAK", .setting = "powersgd_compression"},
      {.name = "AIAK_MATRIX_APPROXIMATION_RANK", .of = "AIAK", .setting = "matrix_approximation_rank"},
      {.name = "AIAK_START_COMPRESS_ITER", .of = "AIAK", .setting = "start_compress_iter"},
      {.name = "gradient_predivide_factor", .of = "apex", .setting = "grad_predivide"},
      // Hugging Face's TrainingArguments
      {.name = "learning_rate", .of = "Hugging Face", .setting = "lr"},
      {.name = "num_train_epochs", .of = "Hugging Face", .setting = "epochs"},
      {.name = "max_steps", .of = "Hugging Face", .setting = "steps"},
      {.name = "per_device_train_batch_size", .of = "Hugging Face", .setting = "batch_size"},
      {.name = "gradient_accumulation_steps", .of = "Hugging Face", .setting = "accumulation"},
      {.name = "warmup_ratio", .of = "Hugging Face", .setting = "warmup"},
      {.name = "warmup_steps", .of = "Hugging Face", .setting = "warmup"},
      {.name = "lr_scheduler_type",
       .of = "Hugging Face",
       .setting = "schedule",
       .values = {{"linear", "linear"},
                  {"cosine", "cosine"},
                  {"constant", "constant"},
                  {"constant_with_warmup", "constant"}}},
      {.name = "adam_beta1", .of = "Hugging Face", .setting = "beta1"},
      {.name = "adam_beta2", .of = "Hugging Face", .setting = "beta2"},
      {.name = "adam_epsilon", .of = "Hugging Face", .setting = "eps"},
      {.name = "label_smoothing_factor", .of = "Hugging Face", .setting = "label_smoothing"},
      {.name = "fp16",
       .of = "Hugging Face",
       .setting = "precision",
       .values = {{"true", "fp16"}, {"false", "fp32"}},
       .off = "fp32"},
      {.name = "bf16",
       .of = "Hugging Face",
       .setting = "precision",
       .values = {{"true", "bf16"}, {"false", "fp32"}},
       .off = "fp32"},
      {.name = "dataloader_num_workers", .of = "Hugging Face", .setting = "workers"},
      {.name = "logging_steps", .of = "Hugging Face", .setting = "log_every"},
      {.name = "save_steps", .of = "Hugging Face", .setting = "save_every"},
      {.name = "save_total_limit", .of = "Hugging Face", .setting = "keep"},
      {.name = "output_dir", .of = "Hugging Face", .setting = "output"},
      {.name = "resume_from_checkpoint", .of = "Hugging Face", .setting = "resume"},
      // timm's train.py
      {.name = "opt", .of = "timm", .setting = "optimizer"},
      {.name = "opt_eps", .of = "timm", .setting = "eps"},
      {.name = "sched",
       .of = "timm",
       .setting = "schedule",
       .values = {{"cosine", "cosine"}, {"step", "step"}, {"multistep", "multistep"}}},
      {.name = "warmup_epochs", .of = "timm", .setting = "warmup", .suffix = "e"},
      {.name = "clip_grad", .of = "timm", .setting = "clip"},
      {.name = "smoothing", .of = "timm", .setting = "label_smoothing"},
      {.name = "crop_pct", .of = "timm", .setting = "crop_ratio"},
      {.name = "img_size", .of = "timm", .setting = "image_size"},
      {.name = "num_classes", .of = "timm", .setting = "classes"},
      {.name = "grad_accum_steps", .of = "timm", .setting = "accumulation"},
      {.name = "aa", .of = "timm", .setting = "auto_augment"},
      {.name = "reprob", .of = "timm", .setting = "erase_prob"},
      {.name = "remode", .of = "timm", .setting = "erase_mode"},
      {.name = "recount", .of = "timm", .setting = "erase_count"},
      {.name = "sync_bn", .of = "timm", .setting = "sync_batchnorm"},
      // apex's function
      {.name = "convert_syncbn_model", .of = "apex", .setting = "sync_batchnorm"},
      {.name = "model_ema_decay", .of = "timm", .setting = "ema_decay"},
      // Colossal-AI's plugins
      {.name = "max_norm", .of = "Colossal-AI", .setting = "clip"},
      {.name = "tp_size", .of = "Colossal-AI", .setting = "tp"},
      {.name = "pp_size", .of = "Colossal-AI", .setting = "pp"},
      {.name = "num_model_chunks", .of = "Colossal-AI", .setting = "pp_interleave"},
      {.name = "enable_sequence_parallelism", .of = "Colossal-AI", .setting = "sp"},
      {.name = "zero_stage", .of = "Colossal-AI", .setting = "zero"},
      {.name = "comm_dtype", .of = "Colossal-AI", .setting = "allreduce_dtype"},
      {.name = "communication_dtype", .of = "Colossal-AI", .setting = "allreduce_dtype"},
      {.name = "initial_scale", .of = "Colossal-AI", .setting = "init_scale"},
      {.name = "bucket_cap_mb", .of = "Colossal-AI", .setting = "bucket_mb"},
      {.name = "ddp_bucket_cap_mb", .of = "Colossal-AI", .setting = "bucket_mb"},
      // What explain called it
      {.name = "device_memory", .of = "switchyard explain", .setting = "memory_limit"},
  };
  return aliases;
}

const std::vector<Shorthand>& TrainShorthands() {
  static const auto& shorthands = *new std::vector<Shorthand>{ShorthandOf(
      "parallel", "the axes of the mesh at once: dp2,tp2,pp2,zero1,sp is --dp=2 --tp=2 --pp=2 --zero=1 --sp",
      {"dp", "tp", "pp", "zero", "sp"})};
  return shorthands;
}

}  // namespace switchyard
