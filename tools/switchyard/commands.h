// The commands of the program, one function each; main.cc lists them with their flags and help, and chooses. Each
// returns OK or the error that main prints before it exits with status 1.
#pragma once

#include "core/base/status.h"
#include "tools/switchyard/command_line.h"

namespace switchyard {

Status TrainCommand(const CommandLine& line);
Status EvalCommand(const CommandLine& line);
Status PredictCommand(const CommandLine& line);
Status ExportCommand(const CommandLine& line);
Status PlotCommand(const CommandLine& line);
Status BenchCommand(const CommandLine& line);
Status ExplainCommand(const CommandLine& line);
Status OpsCommand(const CommandLine& line);
Status DevicesCommand(const CommandLine& line);
Status DoctorCommand(const CommandLine& line);
Status ModelsCommand(const CommandLine& line);
Status DatasetsCommand(const CommandLine& line);
Status VersionCommand(const CommandLine& line);

}  // namespace switchyard
