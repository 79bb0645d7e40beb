// Tries a plugin library in a process of its own (the small program switchyard-probe, which lies beside the program or
// in ../bin), so that one that crashes, hangs or exits cannot take the program with it. Successes are kept in the
// user's cache folder by path, size and time of change; failures are tried again, since their cause may lie outside of
// the file. The probe loads the library and asks for its interfaces, asks a backend for its devices, and exits as a
// program does; it compares what the process looks like before and after: a change by loading is refused, one by asking
// for devices (a driver's, maybe) is warned of. SWITCHYARD_PROBE_TIMEOUT: seconds for each of these (5; four times as
// long for devices). Thread-safe.
#pragma once

#include <string>

#include "core/base/status.h"

namespace switchyard {

// OK, or the reason why the library must not be loaded ("crashed in sy_plugin_create (signal 11, Segmentation fault)").
// OK also where the probe program is not installed (a user's own program built on the SDK): the library is then loaded
// directly.
Status ProbeLibrary(const std::string& path);

// The main function of switchyard-probe: argv[1] is the library; the report goes to file descriptor 3.
int ProbeMain(int argc, char** argv);

}  // namespace switchyard
