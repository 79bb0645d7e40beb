// The files in one checkpoint's folder (checkpoint.h names them), each with its size and checksum in state.json, which
// ends in a checksum of its own text.
#pragma once

#include <string>

#include "core/train/checkpoint.h"
#include "core/train/file_calls.h"

namespace switchyard {

constexpr char kCheckpointRecord[] = "state.json";  // written last: a folder that has it was written to its end

// Creates the folder `name` in `root` with all files in it; only the name itself is not durable yet. After an error it
// may lie there in part.
Status WriteCheckpointFiles(const Folder& root, const std::string& name, const CheckpointContents& contents);

// Opens them and checks all but the tensors' payloads. DataLoss names the file and the field that is damaged;
// FailedPrecondition: of another format. The JSON files have 16 MiB at most, but for the index of pieces: 256 MiB, for
// 2,300 tensors (of a transformer of 22 billion weights, with Adam's) on 1,024 ranks, each piece in 90 bytes. It takes
// twenty times that while it is read; ResourceExhausted where this is more than half of the memory that is left.
StatusOr<LoadedCheckpoint> ReadCheckpointFiles(const std::string& folder);

}  // namespace switchyard
