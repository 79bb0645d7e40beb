// The passes that make a Program, in their order, each in the file of its name, but for the short ones (passes.cc),
// loss_scale and scaler (loss_scaling.cc), stages (pipeline.cc) and state (model_state.cc):
//
//   autocast   products in a half type, or the whole model
//   loss_scale what the loss is multiplied by; NamedGraph::loss_scale
//   rank_sums  what a loss sums over the data group stays as it is where one rank is all of it
//   gradients  the backward part, behind each training plan's loss; NamedGraph::gradients
//   wide_gradients  weights' gradients that are sums over halves are f32, as their weights are
//   stages     which blocks each stage of a pipeline has
//   sync_batch_norm  batch norms over the samples of all ranks; refuses those over a single value per channel
//   micro_batches  from here on there is a training plan for each kind of micro-batch; the schedule
//   tensor_parallel  ranks of the tensor group share weights, and with them products, heads and hidden units
//   half_weights  what the forward part casts of parameters becomes state; the plan "halves"
//   recompute  of blocks of the model, the backward part reads a second computation instead of what was kept
//   pipeline   each rank's part of the model, for all micro-batches of an update in one plan
//   state      of the model itself, as running statistics: where an update ends, all ranks take that of rank 0, unless
//              each keeps its own (broadcast_buffers)
//   buckets    gradients gathered into flat buckets, added up over micro-batches and ranks; flat_gradients, places
//   sharded_parameters  ranks have pieces of parameters, and gather buckets of them where they are read
//   update     norm, clipping, optimizer, in the plan that ends an update; NamedGraph::finite
//   offload    the optimizer's state lies in host memory, and what reads it runs there
//   scaler     the next value of a dynamic loss scale
//   stage_parts  in a pipeline: what a stage holds is all of a tensor or nothing of it, and it knows both
//
// Thread-safe: pure functions.
#pragma once

#include <vector>

#include "core/parallel/program.h"

namespace switchyard {

Pass AutocastPass();
Pass RankSumsPass();
Pass GradientsPass();
Pass WideGradientsPass();
Pass StagesPass();
Pass SyncBatchNormPass();
Pass MicroBatchesPass();
Pass TensorParallelPass();
Pass RecomputePass();
Pass PipelinePass();
Pass ModelStatePass();
Pass BucketsPass();
Pass ShardedParametersPass();
Pass UpdatePass();
Pass OffloadPass();
Pass StagePartsPass();

const std::vector<Pass>& Passes();  // in their order

// Behind "buckets": how the ranks of the data group share the update of the plan's buckets; one rank: they do not.
SharedUpdate SharedUpdateOf(const Program& program, const ProgramOptions& options, const NamedGraph& plan);

}  // namespace switchyard
