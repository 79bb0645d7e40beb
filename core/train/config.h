// Everything that decides a training run, with its defaults: one field a flag, same name, same meaning. The resolved
// configuration is saved in the run folder as config.json, which --config reads back, and in each checkpoint. What
// both may hold, and what may be taken from a checkpoint, follows from the kind of each setting.
#pragma once

#include <cstdint>
#include <initializer_list>
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
  std::string warmup;                   // "500", "20e", "0.3"; "": the model's recipe
  float warmup_lr = -1, min_lr = -1;    // < 0: the model's recipe
  std::vector<std::string> milestones;  // updates
  int64_t step_size = 0;
  float gamma = 0.1f;
  bool per_epoch = false;  // the rate changes only between epochs
  std::string scale_lr = "none";
  int base_batch_size = 512;
  float scale_lr_factor = 1;
  float label_smoothing = -1;         // < 0: the model's recipe
  std::string on_nonfinite = "stop";  // stop, skip

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

// Whether a setting stays with the run.
enum class SettingKind {
  kProperty,  // of the run: kept in its checkpoints, in force again where the run goes on or is evaluated
  kPlace,  // where and by which code it runs, where it reads and writes: the user's choice at each start. Never taken
           // from a checkpoint, which may come from anybody: some of these name libraries to load
  kAct,    // done once, at a start: loading weights, going on. Kept nowhere, so that nothing does it again
};

// The fields with their help texts: what the command's flags, environment variables and config files are made from.
// X(field, kind, help)
#define SWITCHYARD_TRAIN_FIELDS(X)                                                                                    \
  X(model, kProperty, "model to train; `switchyard models` lists them")                                               \
  X(dataset, kProperty, "dataset; `switchyard datasets` lists them")                                                  \
  X(data, kPlace,                                                                                                     \
    "folder or archive with the data; empty: $SWITCHYARD_DATA/<name>, the cache folder, then a download")             \
  X(image_size, kProperty, "pixels per side; 0: the model's")                                                         \
  X(channels, kProperty, "image channels; 0: the dataset's")                                                          \
  X(classes, kProperty, "number of classes; 0: the dataset's")                                                        \
  X(patch, kProperty, "ViT patch, pixels; 0: the model's")                                                            \
  X(width, kProperty, "hidden width; 0: the model's")                                                                 \
  X(depth, kProperty, "number of layers; 0: the model's")                                                             \
  X(heads, kProperty, "attention heads; 0: the model's")                                                              \
  X(mlp_ratio, kProperty, "width of the MLP over the hidden width; 0: the model's")                                   \
  X(layer_norm_eps, kProperty, "eps of a ViT's layer norms; 0: that of the pretrained weights, or 1e-6")              \
  X(dropout, kProperty, "dropout probability in [0, 1)")                                                              \
  X(drop_path, kProperty, "stochastic depth probability in [0, 1), rising linearly over the depth")                   \
  X(pretrained, kAct, "weights to start from: a .safetensors file (timm or Hugging Face names) or a checkpoint")      \
  X(reset_head, kAct, "start with a new classifier where the pretrained one has another number of classes")           \
  X(epochs, kProperty, "passes over the training data; 0: the model's recipe")                                        \
  X(steps, kProperty, "stop after so many updates; 0: --epochs decides")                                              \
  X(batch_size, kProperty,                                                                                            \
    "images per rank and micro-step; 0: the model's recipe; auto: the largest power of two that fits")                \
  X(global_batch_size, kProperty,                                                                                     \
    "images per update over all ranks (batch_size x ranks x accumulation); 0: from --batch_size, or the resumed "     \
    "run's")                                                                                                          \
  X(accumulation, kProperty, "micro-steps per update, with one round of communication")                               \
  X(seed, kProperty, "fixes weights, order, augmentation and dropout")                                                \
  X(optimizer, kProperty, "sgd, adam or adamw")                                                                       \
  X(lr, kProperty, "peak learning rate; 0: the model's recipe")                                                       \
  X(weight_decay, kProperty, "weight decay; below 0: the model's recipe")                                             \
  X(momentum, kProperty, "of sgd")                                                                                    \
  X(nesterov, kProperty, "Nesterov momentum for sgd")                                                                 \
  X(beta1, kProperty, "of adam and adamw")                                                                            \
  X(beta2, kProperty, "of adam and adamw")                                                                            \
  X(eps, kProperty, "of adam and adamw")                                                                              \
  X(clip, kProperty, "largest global gradient norm; 0: none; below 0: the model's recipe")                            \
  X(schedule, kProperty, "constant, multistep, step, linear, cosine or cosine_annealing")                             \
  X(warmup, kProperty,                                                                                                \
    "warm-up length: updates (500), epochs (20e) or a share of the run (0.3); empty: the model's recipe")             \
  X(warmup_lr, kProperty, "learning rate at the start of the warm-up; below 0: the model's recipe")                   \
  X(min_lr, kProperty, "learning rate at the end of cosine and linear; below 0: the model's recipe")                  \
  X(milestones, kProperty, "multistep: updates at which the rate falls, e.g. 1000,2000")                              \
  X(step_size, kProperty, "step: updates between falls")                                                              \
  X(gamma, kProperty, "multistep and step: factor of a fall")                                                         \
  X(per_epoch, kProperty, "change the rate between epochs only")                                                      \
  X(scale_lr, kProperty, "none, linear or sqrt: scale rates by global batch over --base_batch_size")                  \
  X(base_batch_size, kProperty, "batch for which --lr is meant")                                                      \
  X(scale_lr_factor, kProperty, "extra factor of --scale_lr")                                                         \
  X(label_smoothing, kProperty, "share of the target spread over all classes; below 0: the model's recipe")           \
  X(on_nonfinite, kProperty,                                                                                          \
    "stop: gradients with inf or nan end the run; skip: their update is left out, up to 100 in a row")                \
  X(workers, kPlace, "loader threads per rank")                                                                       \
  X(prefetch, kPlace, "batches prepared ahead")                                                                       \
  X(max_bad_samples, kProperty, "unreadable samples that are skipped before the run stops")                           \
  X(augmentation, kProperty,                                                                                          \
    "training augmentation: none, crop, crop_flip, resized_crop; empty: the recipe's, or what suits the dataset")     \
  X(color_jitter, kProperty, "brightness, contrast and saturation jitter, 0 to 1")                                    \
  X(crop_ratio, kProperty,                                                                                            \
    "evaluation: share of the shorter side that the centre crop keeps; 0: 0.875 for photographs, else 1")             \
  X(interpolation, kProperty,                                                                                         \
    "filter of resizing, bilinear or bicubic; empty: that of the pretrained weights, or bilinear")                    \
  X(mean, kProperty, "mean of pixels in [0, 1] to subtract, one number or one per channel; empty: the model's")       \
  X(std, kProperty, "standard deviation to divide by; empty: the model's")                                            \
  X(download, kPlace, "download a dataset that is not found")                                                         \
  X(train_size, kProperty, "training samples of shapes and synthetic; 0: their default")                              \
  X(validation_size, kProperty, "validation samples of shapes and synthetic; 0: their default")                       \
  X(device, kPlace, "auto, or a backend plugin: cpu, cuda (or gpu), reference ...; `switchyard devices` lists them")  \
  X(device_list, kPlace, "device ids to use, e.g. 0,1; empty: all")                                                   \
  X(collective, kPlace, "auto, or a collective plugin: shm, mpi ...")                                                 \
  X(ranks_per_device, kPlace, "ranks that share one device; 0: one, or all where the device can be shared")           \
  X(cpu_devices, kPlace, "devices that the cpu plugin shows; 0: one per local rank")                                  \
  X(threads, kPlace,                                                                                                  \
    "host threads per rank for devices that compute on host cores; 0: this rank's share of the cores")                \
  X(precision, kProperty, "fp32 or bf16 (bf16 compute, fp32 master weights)")                                         \
  X(freeze_limit_ms, kPlace, "silence after which a rank counts as frozen, ms; 0: never")                             \
  X(init_timeout_ms, kPlace, "how long ranks wait for each other at start, ms")                                       \
  X(bucket_mb, kProperty, "size of a gradient bucket, MB; the first is 1 MB")                                         \
  X(find_unused_parameters, kProperty,                                                                                \
    "count gradients of parameters that the loss does not use as zero instead of refusing")                           \
  X(compile, kProperty, "fuse the plan; 0 runs it node by node")                                                      \
  X(deterministic, kProperty, "only kernels that repeat bit for bit")                                                 \
  X(max_fallback, kProperty, "nodes that may run on the reference plugin; below 0: any number")                       \
  X(debug, kPlace,                                                                                                    \
    "sync: wait after every node and name the one that failed; nan: stop at the first value that is not finite")      \
  X(interpose, kPlace,                                                                                                \
    "plugins around the device and collective plugins, outermost first: validate, trace[:FILE], "                     \
    "fault:CALL@N[+][:EFFECT] with CALL alloc, copy, launch, prepare, bind, synchronize, collective or device_lost, " \
    "EFFECT fail, lost, wrong or delay=MS; e.g. validate,fault:alloc@17")                                             \
  X(output, kPlace, "folder for runs: <output>/<model>/<tag>/<suffix>/<output_suffix>/<node>")                        \
  X(tag, kPlace, "second part of the run folder; empty: the dataset")                                                 \
  X(suffix, kPlace, "third part of the run folder, which must not be there yet; empty: date and time")                \
  X(output_suffix, kPlace, "fourth part of the run folder")                                                           \
  X(log_every, kProperty, "updates between log lines")                                                                \
  X(eval_every, kProperty, "epochs between evaluations; 0: only at the end")                                          \
  X(save_every, kProperty, "updates between checkpoints; 0: at the end of each epoch")                                \
  X(keep, kProperty, "checkpoints kept beside the best and the latest; 0: all")                                       \
  X(resume, kAct,                                                                                                     \
    "run folder or checkpoint to go on from, with the run's own settings; of places and devices give what is needed") \
  X(tensorboard, kProperty, "write TensorBoard event files")

// The fields of these kinds.
nlohmann::ordered_json ToJson(const TrainConfig& config, std::initializer_list<SettingKind> kinds);
// The properties of a run as a checkpoint keeps them; what else `json` may hold of settings is passed over. Properties
// that are missing keep their defaults; an unknown setting or a value of another type is an error that names it.
StatusOr<TrainConfig> PropertiesFromJson(const nlohmann::json& json);
// Numbers outside what their flag means (--batch_size=-3) and settings that contradict each other are an error that
// names the flag.
Status CheckTrainConfig(const TrainConfig& config);

}  // namespace switchyard
