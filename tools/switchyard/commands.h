// The commands of the program, one function each; main.cc lists them with their flags and help, and chooses. Each
// returns OK or the error that main prints before it exits with status 1.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

using Arguments = std::vector<std::string>;  // positional ones

Status TrainCommand(const Arguments& arguments);
Status EvalCommand(const Arguments& arguments);
Status PredictCommand(const Arguments& arguments);
Status ExportCommand(const Arguments& arguments);
Status BenchCommand(const Arguments& arguments);
Status ExplainCommand(const Arguments& arguments);
Status OpsCommand(const Arguments& arguments);
Status DevicesCommand(const Arguments& arguments);
Status DoctorCommand(const Arguments& arguments);
Status ModelsCommand(const Arguments& arguments);
Status DatasetsCommand(const Arguments& arguments);
Status VersionCommand(const Arguments& arguments);

}  // namespace switchyard
