// Mode dp: one process that drives several devices of one node. What torch.nn.DataParallel does with one batch (scatter
// it, replicate the model, gather the gradients) is done here by ranks that are threads: each has a device, a replica
// of the model and its part of every global batch, and gradients are reduced between them as between processes, by the
// same collectives. So a run has the bits of mode ddp on as many ranks, and checkpoints of both are the same.
#pragma once

#include <absl/functional/function_ref.h>

#include <functional>

#include "core/train/world.h"

namespace switchyard {

// Joins `count` worlds of one run, each on a thread of its own, and runs `body` in each. Returns when all have ended,
// with the error of the replica that failed first, which it names; its peers' waits end then. `give_up`, where it is
// given, is called with that error if they do not end within 10 s; it may leave the process. An exception in a thread
// comes out of here. From one thread at a time.
Status OnReplicas(const WorldRequest& request, int count, absl::FunctionRef<Status(World&)> body,
                  const std::function<void(const Status&)>& give_up = {});

}  // namespace switchyard
