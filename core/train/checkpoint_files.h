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
// FailedPrecondition: of another format.
StatusOr<LoadedCheckpoint> ReadCheckpointFiles(const std::string& folder);

}  // namespace switchyard
