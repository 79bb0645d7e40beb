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
  // What may be said, but not be decided: `said` are their values that ask for what is so anyway.
  const auto always = [](const char* name, const char* of, const std::vector<std::string>& said, const char* what,
                         const char* instead) {
    Alias alias{.name = name, .of = of, .setting = "", .always = what, .instead = instead};
    for (const std::string& value : said) alias.values[value] = "";
    return alias;
  };
  const auto fused = [](const char* name) {
    return Alias{.name = name, .of = "Colossal-AI", .setting = "compile", .values = {{"true", "true"}, {"false", ""}}};
  };
  // Of 2^20 numbers in fp32, in MB.
  const auto in_m = [](const char* name) {
    return Alias{.name = name, .of = "Colossal-AI", .setting = "bucket_mb", .factor = 4.194304, .off = "50.331648"};
  };
  // Of what costs nothing to have: who can do without it gets it all the same.
  const std::vector<std::string> yes_or_no = {"true", "false"};
  const std::map<std::string, std::string> dtypes = {{"torch.float16", "fp16"},  {"float16", "fp16"},
                                                     {"torch.bfloat16", "bf16"}, {"bfloat16", "bf16"},
                                                     {"torch.float32", "fp32"},  {"float32", "fp32"}};
  // Their schedules have a warm-up where one is asked for, whatever the model's recipe says.
  const std::map<std::string, std::string> no_warmup = {{"warmup", "0"}};
  const std::map<std::string, std::string> nesterov = {{"nesterov", "true"}}, plain = {{"nesterov", "false"}};
  const std::map<std::string, std::string> one_thread = {{"0", "1"}};  // theirs would load in the training's own
  constexpr char kPlanned[] = "memory is planned before the run, to the byte";
  constexpr char kLimit[] = "--memory_limit says how much of the device a rank may hold";
  constexpr char kFp32Outputs[] = "losses and what evaluation reads of a model are fp32";
  static const auto& aliases = *new std::vector<Alias>{
      // torch.distributed and its examples
      {.name = "dist_backend",
       .of = "torch.distributed",
       .setting = "collective",
       .values = {{"nccl", "nccl"}, {"hccl", "hccl"}, {"mpi", "mpi"}, {"gloo", "tcp"}}},
      {.name = "collective", .of = "torch.distributed", .setting = "collective", .values = {{"gloo", "tcp"}}},
      {.name = "wd", .of = "torch.distributed", .setting = "weight_decay"},
      {.name = "addr", .of = "Ascend", .setting = "master_addr"},
      // Mixed precision of apex, TorchAcc and AIAK
      {.name = "opt_level", .of = "apex", .setting = "amp"},
      {.name = "amp", .of = "PyTorch", .setting = "amp", .values = {{"true", "on"}, {"false", "O0"}}, .others = true},
      {.name = "cast_model_type", .of = "apex", .setting = "precision", .values = dtypes},
      {.name = "min_loss_scale", .of = "apex", .setting = "min_scale"},
      {.name = "max_loss_scale", .of = "apex", .setting = "max_scale"},
      always("master_weights", "apex and Colossal-AI", {"true"}, "master weights are fp32 at every level",
             "leave it out"),
      {.name = "enabled", .of = "apex", .setting = "amp", .values = {{"true", ""}, {"false", "O0"}}},
      always("patch_torch_functions", "apex", {}, "the level says which ops compute in the half type",
             "--amp=O1 as patched functions do, --amp=O2 as a model that is cast does"),
      always("cast_model_outputs", "apex", {"torch.float32", "float32"}, kFp32Outputs, "leave it out"),
      always("set_grad_none", "apex", yes_or_no, "gradients are not kept from update to update", "leave it out"),
      always("verbosity", "apex", {"0", "1"}, "the banner says the level and the scaler", "leave it out"),
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
      {.name = "max_steps", .of = "Hugging Face", .setting = "steps", .values = {{"-1", ""}}, .others = true},
      {.name = "per_device_train_batch_size", .of = "Hugging Face", .setting = "batch_size"},
      {.name = "gradient_accumulation_steps", .of = "Hugging Face", .setting = "accumulation"},
      {.name = "warmup_ratio", .of = "Hugging Face", .setting = "warmup", .share = true, .off = "0.0"},
      {.name = "warmup_steps", .of = "Hugging Face", .setting = "warmup", .off = "0"},
      {.name = "lr_scheduler_type",
       .of = "Hugging Face",
       .setting = "schedule",
       .values =
           {{"linear", "linear"}, {"cosine", "cosine"}, {"constant", "constant"}, {"constant_with_warmup", "constant"}},
       .beside = {{"linear", no_warmup}, {"cosine", no_warmup}, {"constant", no_warmup}}},
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
      {.name = "dataloader_num_workers",
       .of = "Hugging Face",
       .setting = "workers",
       .values = one_thread,
       .others = true},
      {.name = "workers", .of = "PyTorch", .setting = "workers", .values = one_thread, .others = true},
      {.name = "logging_steps", .of = "Hugging Face", .setting = "log_every"},
      {.name = "save_steps", .of = "Hugging Face", .setting = "save_every"},
      {.name = "save_total_limit", .of = "Hugging Face", .setting = "keep"},
      {.name = "output_dir", .of = "Hugging Face", .setting = "output"},
      {.name = "resume_from_checkpoint", .of = "Hugging Face", .setting = "resume"},
      // timm's train.py
      {.name = "opt",
       .of = "timm",
       .setting = "optimizer",
       .values = {{"momentum", "sgd"}, {"nesterov", "sgd"}, {"nlars", "lars"}},
       .others = true,
       .beside =
           {{"sgd", nesterov}, {"nesterov", nesterov}, {"momentum", plain}, {"nlars", nesterov}, {"lars", plain}}},
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
      // timm's own decay, unless model_ema_decay says another.
      {.name = "model_ema",
       .of = "timm",
       .setting = "ema_decay",
       .values = {{"true", "0.9998"}, {"false", "0"}},
       .off = "0.9998"},
      {.name = "model_ema_decay", .of = "timm", .setting = "ema_decay"},
      // Colossal-AI's plugins
      {.name = "max_norm", .of = "Colossal-AI", .setting = "clip"},
      {.name = "tp_size", .of = "Colossal-AI", .setting = "tp"},
      {.name = "pp_size", .of = "Colossal-AI", .setting = "pp"},
      {.name = "num_model_chunks", .of = "Colossal-AI", .setting = "pp_interleave"},
      {.name = "enable_sequence_parallelism", .of = "Colossal-AI", .setting = "sp"},
      {.name = "zero_stage", .of = "Colossal-AI", .setting = "zero"},
      {.name = "comm_dtype", .of = "Colossal-AI", .setting = "allreduce_dtype", .values = dtypes, .others = true},
      {.name = "communication_dtype",
       .of = "Colossal-AI",
       .setting = "allreduce_dtype",
       .values = dtypes,
       .others = true},
      {.name = "initial_scale", .of = "Colossal-AI", .setting = "init_scale"},
      {.name = "bucket_cap_mb",
       .of = "Colossal-AI",
       .setting = "bucket_mb",
       .factor = 1.048576},  // of MiB, as PyTorch's
      {.name = "ddp_bucket_cap_mb", .of = "Colossal-AI", .setting = "bucket_mb", .factor = 1.048576, .off = "26.2144"},
      in_m("reduce_bucket_size_in_m"),
      in_m("zero_bucket_size_in_m"),
      in_m("min_chunk_size_m"),
      {.name = "overlap_communication", .of = "Colossal-AI", .setting = "overlap"},
      {.name = "overlap_p2p", .of = "Colossal-AI", .setting = "overlap"},
      {.name = "overlap_allgather", .of = "Colossal-AI", .setting = "overlap", .off = "false"},
      {.name = "enable_async_reduce", .of = "Colossal-AI", .setting = "overlap"},
      {.name = "stage", .of = "Colossal-AI", .setting = "zero"},
      {.name = "partition_grad", .of = "Colossal-AI", .setting = "zero", .values = {{"true", "2"}, {"false", "1"}}},
      {.name = "cpu_offload",
       .of = "Colossal-AI",
       .setting = "offload",
       .values = {{"true", "optimizer"}, {"false", "none"}}},
      // Two runs of blocks for each stage, unless num_model_chunks says how many.
      {.name = "pp_style",
       .of = "Colossal-AI",
       .setting = "pp_interleave",
       .values = {{"1f1b", "1"}, {"interleaved", "2"}},
       .off = "2"},
      {.name = "strict_ddp_mode", .of = "Colossal-AI", .setting = "tp", .values = {{"true", "1"}, {"false", ""}}},
      fused("enable_all_optimization"),
      fused("enable_fused_normalization"),
      fused("enable_flash_attention"),
      fused("enable_jit_fused"),
      always("enable_tensor_parallelism", "Colossal-AI", yes_or_no, "--tp alone divides layers",
             "--tp=1, which is the default"),
      always("parallel_output", "Colossal-AI", yes_or_no, "losses read logits in whichever form the plan has them",
             "leave it out"),
      always("enable_sequence_overlap", "Colossal-AI", yes_or_no, "collectives run beside computing as --overlap says",
             "leave it out"),
      always("num_layers_per_stage", "Colossal-AI", {}, "stages are cut where their FLOPs are most alike",
             "leave it out"),
      always("custom_policy", "Colossal-AI", {}, "what --tp divides follows from the ops", "leave it out"),
      always("gradient_checkpoint_config", "Colossal-AI", {}, "all stages compute the same blocks again",
             "--recompute=blocks or every:K"),
      always("scheduler_nodes", "Colossal-AI", {}, "stages run 1F1B", "leave it out"),
      always("inner_ring_size", "Colossal-AI", {}, "attention sees whole sequences", "leave it out"),
      always("use_fp8", "Colossal-AI", {"false"}, "nothing is computed in fp8", "--amp=O2 computes in a half type"),
      always("cast_inputs", "Colossal-AI", {"true"}, "a model gets its input in the type that it computes in",
             "leave it out"),
      always("verbose", "Colossal-AI", yes_or_no, "the banner and the log say what runs", "leave it out"),
      always("max_prefetch", "Colossal-AI", {"0"}, "parameters are fetched as early as the plan needs", "leave it out"),
      always("extra_dp_size", "Colossal-AI", {"1"}, "all data ranks share the parameters",
             "--zero=2, or --shard_param_frac below 1, keeps more of them whole"),
      always("hidden_dim", "Colossal-AI", {}, kPlanned, "leave it out"),
      always("memstats", "Colossal-AI", {}, kPlanned, "leave it out"),
      always("chunk_config_dict", "Colossal-AI", {}, "buckets are as large as --bucket_mb says", "leave it out"),
      always("chunk_init_device", "Colossal-AI", {}, kPlanned, "--offload=all keeps parameters on the host"),
      always("sp_size", "Colossal-AI", {"1"}, "--sp divides over the ranks of --tp", "--tp=N --sp"),
      always("sequence_parallelism_mode", "Colossal-AI", {"split_gather"},
             "--sp gathers before the divided layers and scatters behind them", "leave it out"),
      always("make_vocab_size_divisible_by", "Colossal-AI", {"1", "64"},
             "classes are divided over --tp as they are, unevenly where they must be", "leave it out"),
      always("norm_type", "Colossal-AI", {"2", "2.0"}, "gradients are clipped by their 2-norm", "leave it out"),
      always("gradient_as_bucket_view", "Colossal-AI", yes_or_no, "gradients are views into buckets", "leave it out"),
      always("static_graph", "Colossal-AI", yes_or_no, "a step's graph is planned before the run and stays as it is",
             "leave it out"),
      always("dp_outside", "Colossal-AI", {"true"}, "the data axis is the outermost of the mesh", "leave it out"),
      always("enable_metadata_cache", "Colossal-AI", yes_or_no,
             "shapes of messages between stages are planned, and none is sent", "leave it out"),
      always("fp8_communication", "Colossal-AI", {"false"}, "nothing is sent in fp8",
             "--allreduce_dtype=bf16 or --powersgd_compression sends less"),
      always("check_reduction", "Colossal-AI", yes_or_no,
             "a parameter that no gradient reaches is an error that names it",
             "--find_unused_parameters counts its gradient as zero"),
      always(
          "placement_policy", "Colossal-AI", {"static"}, kPlanned,
          "--offload=optimizer or all moves state to the host (their cuda and cpu are none and all), and `switchyard "
          "explain --search` says what fits"),
      always("search_range_m", "Colossal-AI", {"0", "32"}, "buckets are as large as --bucket_mb says", "leave it out"),
      always("gpu_margin_mem_ratio", "Colossal-AI", {"0", "0.0"}, kPlanned,
             "--offload_optim_frac below 1 keeps the rest of the state on the device"),
      always("steady_cuda_ram_ratio", "Colossal-AI", {}, kPlanned, kLimit),
      always("steady_cuda_cap_ratio", "Colossal-AI", {"0.9"}, kPlanned, kLimit),
      always("warmup_non_model_data_ratio", "Colossal-AI", {"0.8"}, kPlanned, kLimit),
      always("force_outputs_fp32", "Colossal-AI", yes_or_no, kFp32Outputs, "leave it out"),
      always("enable_gradient_accumulation", "Colossal-AI", yes_or_no,
             "gradients are added up over --accumulation micro-steps", "--accumulation=1"),
      // HybridAdam is AdamW that updates each parameter where it lies, as --offload says.
      {.name = "optimizer",
       .of = "Colossal-AI",
       .setting = "optimizer",
       .values = {{"hybrid_adam", "adamw"},
                  {"HybridAdam", "adamw"},
                  {"cpu_adam", "adamw"},
                  {"CPUAdam", "adamw"},
                  {"fused_adam", "adamw"},
                  {"FusedAdam", "adamw"}}},
      {.name = "pin_memory", .of = "PyTorch", .setting = "pin_memory", .values = {{"true", "1"}, {"false", "0"}}},
      {.name = "dataloader_pin_memory",
       .of = "Hugging Face",
       .setting = "pin_memory",
       .values = {{"true", "1"}, {"false", "0"}}},
      {.name = "pin_mem", .of = "timm", .setting = "pin_memory", .values = {{"true", "1"}, {"false", "0"}}},
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
