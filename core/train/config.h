// Everything that decides a training run, with its defaults: one field a flag, same name, same meaning. The resolved
// configuration is saved in the run folder as config.json and read back by --config and on resume.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "nlohmann/json.hpp"

namespace switchyard {

struct TrainConfig {
  // What to train
  std::string model = "vit_micro";
  std::string dataset = "fashion-mnist", data;
  int image_size = 0, channels = 0, classes = 0;   // 0: the model's, or the dataset's
  int patch = 0, width = 0, depth = 0, heads = 0;  // 0: the model's
  float mlp_ratio = 0, layer_norm_eps = 0, dropout = 0, drop_path = 0;
  std::string pretrained;
  bool reset_head = false;

  // How long, in which batches
  int epochs = 0;     // 0: the model's recipe
  int64_t steps = 0;  // stop after so many updates; 0: epochs decide
  static constexpr int kAutoBatch = -1;
  int batch_size = 0;         // per rank; 0: the model's recipe; kAutoBatch: the largest power of two that fits
  int global_batch_size = 0;  // B·W·A; the alternative to batch_size
  int accumulation = 1;       // A
  uint64_t seed = 42;

  // Optimizer and schedule
  std::string optimizer = "adamw";
  float lr = 0;             // 0: the model's recipe
  float weight_decay = -1;  // < 0: the model's recipe
  float momentum = 0.9f;
  bool nesterov = false;
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;
  float clip = -1;  // largest global gradient norm; 0: none; < 0: the model's recipe
  std::string schedule = "cosine";
  std::string warmup;  // "500", "20e", "0.3"; "": the model's recipe
  float warmup_lr = 0, min_lr = 0;
  std::vector<std::string> milestones;  // updates
  int64_t step_size = 0;
  float gamma = 0.1f;
  bool per_epoch = false;  // the rate changes only between epochs
  std::string scale_lr = "none";
  int base_batch_size = 512;
  float scale_lr_factor = 1;
  float label_smoothing = -1;  // < 0: the model's recipe

  // Data
  int workers = 4, prefetch = 2;
  int64_t max_bad_samples = 0;
  std::string augmentation;  // "": what suits the dataset; the names of core/data/augmentation.h
  float color_jitter = 0;
  float crop_ratio = 0;                // 0: what suits the dataset, or the weights'
  std::string interpolation;           // "": bilinear, or the weights'; the names of core/data/resize.h
  std::vector<std::string> mean, std;  // numbers; empty: the model's, or the weights'
  bool download = true;
  int64_t train_size = 0, validation_size = 0;  // of shapes and synthetic

  // Devices and processes
  std::string device = "auto", device_list, collective = "auto";
  int ranks_per_device = 0, cpu_devices = 0, threads = 0;
  std::string precision = "fp32";  // fp32, bf16
  int freeze_limit_ms = 30000, init_timeout_ms = 60000;

  // Communication
  double bucket_mb = 25;
  bool find_unused_parameters = false;

  // The plan
  bool compile = true;
  bool deterministic = true;
  double max_fallback = -1;
  std::vector<std::string> debug;      // sync, nan
  std::vector<std::string> interpose;  // validate, trace, fault:…

  // Watching and keeping
  std::string output = "output", tag, suffix, output_suffix = "run";
  int64_t log_every = 20;  // updates
  int eval_every = 1;      // epochs
  int64_t save_every = 0;  // updates; 0: at the end of each epoch
  int keep = 3;
  std::string resume;  // a run folder or checkpoint; "": start anew
  bool tensorboard = true;
};

// The fields with their help texts: what the command's flags, environment variables and config files are made from.
// X(field, help)
#define SWITCHYARD_TRAIN_FIELDS(X)                                                                                    \
  X(model, "model to train; `switchyard models` lists them")                                                          \
  X(dataset, "dataset; `switchyard datasets` lists them")                                                             \
  X(data, "folder or archive with the data; empty: $SWITCHYARD_DATA/<name>, the cache folder, then a download")       \
  X(image_size, "pixels per side; 0: the model's")                                                                    \
  X(channels, "image channels; 0: the dataset's")                                                                     \
  X(classes, "number of classes; 0: the dataset's")                                                                   \
  X(patch, "ViT patch, pixels; 0: the model's")                                                                       \
  X(width, "hidden width; 0: the model's")                                                                            \
  X(depth, "number of layers; 0: the model's")                                                                        \
  X(heads, "attention heads; 0: the model's")                                                                         \
  X(mlp_ratio, "width of the MLP over the hidden width; 0: the model's")                                              \
  X(layer_norm_eps, "eps of a ViT's layer norms; 0: that of the pretrained weights, or 1e-6")                         \
  X(dropout, "dropout probability in [0, 1)")                                                                         \
  X(drop_path, "stochastic depth probability in [0, 1), rising linearly over the depth")                              \
  X(pretrained, "weights to start from: a .safetensors file (timm or Hugging Face names) or a checkpoint")            \
  X(reset_head, "start with a new classifier where the pretrained one has another number of classes")                 \
  X(epochs, "passes over the training data; 0: the model's recipe")                                                   \
  X(steps, "stop after so many updates; 0: --epochs decides")                                                         \
  X(batch_size, "images per rank and micro-step; 0: the model's recipe; auto: the largest power of two that fits")    \
  X(global_batch_size, "images per update over all ranks (batch_size x ranks x accumulation); 0: from --batch_size")  \
  X(accumulation, "micro-steps per update, with one round of communication")                                          \
  X(seed, "fixes weights, order, augmentation and dropout")                                                           \
  X(optimizer, "sgd, adam or adamw")                                                                                  \
  X(lr, "peak learning rate; 0: the model's recipe")                                                                  \
  X(weight_decay, "weight decay; below 0: the model's recipe")                                                        \
  X(momentum, "of sgd")                                                                                               \
  X(nesterov, "Nesterov momentum for sgd")                                                                            \
  X(beta1, "of adam and adamw")                                                                                       \
  X(beta2, "of adam and adamw")                                                                                       \
  X(eps, "of adam and adamw")                                                                                         \
  X(clip, "largest global gradient norm; 0: none; below 0: the model's recipe")                                       \
  X(schedule, "constant, multistep, step, linear, cosine or cosine_annealing")                                        \
  X(warmup, "warm-up length: updates (500), epochs (20e) or a share of the run (0.3); empty: the model's recipe")     \
  X(warmup_lr, "learning rate at the start of the warm-up")                                                           \
  X(min_lr, "learning rate at the end of cosine and linear")                                                          \
  X(milestones, "multistep: updates at which the rate falls, e.g. 1000,2000")                                         \
  X(step_size, "step: updates between falls")                                                                         \
  X(gamma, "multistep and step: factor of a fall")                                                                    \
  X(per_epoch, "change the rate between epochs only")                                                                 \
  X(scale_lr, "none, linear or sqrt: scale rates by global batch over --base_batch_size")                             \
  X(base_batch_size, "batch for which --lr is meant")                                                                 \
  X(scale_lr_factor, "extra factor of --scale_lr")                                                                    \
  X(label_smoothing, "share of the target spread over all classes; below 0: the model's recipe")                      \
  X(workers, "loader threads per rank")                                                                               \
  X(prefetch, "batches prepared ahead")                                                                               \
  X(max_bad_samples, "unreadable samples that are skipped before the run stops")                                      \
  X(augmentation,                                                                                                     \
    "training augmentation: none, crop, crop_flip, resized_crop; empty: the recipe's, or what suits the dataset")     \
  X(color_jitter, "brightness, contrast and saturation jitter, 0 to 1")                                               \
  X(crop_ratio, "evaluation: share of the shorter side that the centre crop keeps; 0: 0.875 for photographs, else 1") \
  X(interpolation, "filter of resizing, bilinear or bicubic; empty: that of the pretrained weights, or bilinear")     \
  X(mean, "mean of pixels in [0, 1] to subtract, one number or one per channel; empty: the model's")                  \
  X(std, "standard deviation to divide by; empty: the model's")                                                       \
  X(download, "download a dataset that is not found")                                                                 \
  X(train_size, "training samples of shapes and synthetic; 0: their default")                                         \
  X(validation_size, "validation samples of shapes and synthetic; 0: their default")                                  \
  X(device, "auto, or a backend plugin: cpu, cuda (or gpu), reference ...; `switchyard devices` lists them")          \
  X(device_list, "device ids to use, e.g. 0,1; empty: all")                                                           \
  X(collective, "auto, or a collective plugin: shm, mpi ...")                                                         \
  X(ranks_per_device, "ranks that share one device; 0: one, or all where the device can be shared")                   \
  X(cpu_devices, "devices that the cpu plugin shows; 0: one per local rank")                                          \
  X(threads, "host threads per rank for devices that compute on host cores; 0: this rank's share of the cores")       \
  X(precision, "fp32 or bf16 (bf16 compute, fp32 master weights)")                                                    \
  X(freeze_limit_ms, "silence after which a rank counts as frozen, ms; 0: never")                                     \
  X(init_timeout_ms, "how long ranks wait for each other at start, ms")                                               \
  X(bucket_mb, "size of a gradient bucket, MB; the first is 1 MB")                                                    \
  X(find_unused_parameters, "count gradients of parameters that the loss does not use as zero instead of refusing")   \
  X(compile, "fuse the plan; 0 runs it node by node")                                                                 \
  X(deterministic, "only kernels that repeat bit for bit")                                                            \
  X(max_fallback, "nodes that may run on the reference plugin; below 0: any number")                                  \
  X(debug,                                                                                                            \
    "sync: wait after every node and name the one that failed; nan: stop at the first value that is not finite")      \
  X(interpose,                                                                                                        \
    "plugins around the device and collective plugins, outermost first: validate, trace[:FILE], "                     \
    "fault:CALL@N[+][:EFFECT] with CALL alloc, copy, launch, prepare, bind, synchronize, collective or device_lost, " \
    "EFFECT fail, lost, wrong or delay=MS; e.g. validate,fault:alloc@17")                                             \
  X(output, "folder for runs: <output>/<model>/<tag>/<suffix>/<output_suffix>/<node>")                                \
  X(tag, "second part of the run folder; empty: the dataset")                                                         \
  X(suffix, "third part of the run folder; empty: date and time")                                                     \
  X(output_suffix, "fourth part of the run folder")                                                                   \
  X(log_every, "updates between log lines")                                                                           \
  X(eval_every, "epochs between evaluations; 0: only at the end")                                                     \
  X(save_every, "updates between checkpoints; 0: at the end of each epoch")                                           \
  X(keep, "checkpoints kept beside the best and the latest; 0: all")                                                  \
  X(resume, "run folder or checkpoint to go on from")                                                                 \
  X(tensorboard, "write TensorBoard event files")

nlohmann::ordered_json ToJson(const TrainConfig& config);
// Fields that are missing keep their defaults; an unknown field or a value of another type is an error that names it.
StatusOr<TrainConfig> TrainConfigFromJson(const nlohmann::json& json);
// Numbers outside what their flag means (--batch_size=-3) are an error that names the flag.
Status CheckTrainConfig(const TrainConfig& config);

}  // namespace switchyard
