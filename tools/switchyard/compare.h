// `bench --compare=dp,ddp,ddp:O1,…`: the same training steps in several configurations, side by side. Each runs in
// processes of its own, as `launch` starts them, in turn and three times over, so that a machine that slows down slows
// down all; a line each has the median of all updates, samples/s of all ranks, its ratio to the first that ran, and the
// memory that a rank allocates on its device. A configuration that fails is named, and the others run.
#pragma once

#include "core/base/status.h"
#include "tools/switchyard/command_line.h"

namespace switchyard {

// The configurations are those of --compare, the ranks of "ddp", and the devices of "dp", those of --nproc_per_node.
Status CompareRuns(const CommandLine& line);

}  // namespace switchyard
