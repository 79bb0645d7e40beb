#include "tools/switchyard/flags.h"

#include "absl/flags/flag.h"
#include "fmt/ranges.h"
#include "models/foreign_format.h"

ABSL_FLAG(std::string, config, "",
          "JSON file of settings, such as a run's config.json; flags and environment win, and the weights that a run "
          "began with are not loaded for it");
ABSL_FLAG(bool, show_settings, false,
          "print every setting with its value and where that came from, and do nothing else");
ABSL_FLAG(
    std::string, checkpoint, "",
    "a run folder (its latest checkpoint), RUN/checkpoints/best, any checkpoint, or weights: a .safetensors file or a "
    "folder as Hugging Face and timm keep a model");
ABSL_FLAG(bool, ema, false, "use the averaged weights of the checkpoint, of a run with --ema_decay");
ABSL_FLAG(bool, json, false, "print JSON instead of text");
ABSL_FLAG(std::string, to, "plots", "folder for the charts, created where it is missing");
ABSL_FLAG(bool, html, false, "write a page with charts, table and settings too, which needs no server");
ABSL_FLAG(std::optional<int>, world, std::nullopt,
          "ranks to plan for; else those of --dp, --tp and --pp; none of them has to be there");
ABSL_FLAG(bool, measure, false,
          "measure products and memory of this device for a second or two, and tell the least time of each op family");
ABSL_FLAG(bool, search, false,
          "instead of one plan: the ways to divide the run over --world ranks that fit, best first; axes that you give "
          "stay as they are");
ABSL_FLAG(
    std::string, rates, "",
    "what a device and its links reach, to estimate times: a machine's data sheet (a100, which --world without --rates "
    "means, h100, h200), or FLOP/s and bytes/s, also behind a machine: compute:312T,memory:2T,link:300G and, between "
    "nodes of --ranks_per_node, node_link:25G; with --offload also a rank's share of the host, host:25G; --measure "
    "fills in the first two");
ABSL_FLAG(int, top, 3, "classes to show for each file");
ABSL_FLAG(bool, overlay, false, "of masks: write each over its image too, as NAME_overlay.png");
ABSL_FLAG(std::string, match_classes, "name",
          "name: the dataset's classes are the model's, or those of --pretrained weights, of the same names; position: "
          "of the same numbers");
ABSL_FLAG(std::string, names, "huggingface",
          fmt::format("whose names the weights get, of those that the model has: {}",
                      fmt::join(switchyard::FormatNames(), ", ")));
ABSL_FLAG(std::string, have, "", "succeed if this dataset is here or can be downloaded, and print where it is");
ABSL_FLAG(int, nproc_per_node, 1, "ranks to start on this node");
ABSL_FLAG(std::string, nnodes, "1", "number of nodes, or least:most; run `switchyard launch` once on each");
ABSL_FLAG(int, max_restarts, 0,
          "how often a run that fails is started again, from its latest checkpoint, with the nodes that are left");
ABSL_FLAG(int, node_rank, 0, "index of this node, from 0");
ABSL_FLAG(std::string, master_addr, "127.0.0.1", "address of node 0");
ABSL_FLAG(int, master_port, 0, "port of node 0; 0: any free one (one node only)");
ABSL_FLAG(int, rdzv_timeout, 300, "seconds that the nodes wait for each other");
ABSL_FLAG(std::string, token_file, "",
          "file with the secret that the nodes share, readable by you alone; else $SWITCHYARD_TOKEN, or "
          "$SWITCHYARD_TOKEN_FILE, or ~/.switchyard_token");
ABSL_FLAG(
    std::string, compare, "",
    "configurations to time in turn, in processes of their own: dp or ddp (with --nproc_per_node=N devices) or single, "
    "then levels of mixed precision and settings, as dp,ddp,ddp:O1,ddp:allreduce_dtype=fp16");
ABSL_FLAG(int, warmup_steps, 3,
          "updates before those that are measured; as many more as it takes until --powersgd_compression begins");

namespace switchyard {

StatusOr<bool> MatchesClassesByName() {
  const std::string match = absl::GetFlag(FLAGS_match_classes);
  if (match == "name" || match == "position") return match == "name";
  return InvalidArgument("--match_classes: expected name or position, found {}", match);
}

}  // namespace switchyard
