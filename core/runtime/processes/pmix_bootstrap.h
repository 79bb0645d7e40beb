// PMIx, which mpirun and some batch systems offer to every process: used for one thing, to tell all ranks where rank 0
// listens. Needs no MPI_Init. libpmix is opened when a launcher offers PMIx and not before, so that the program runs
// where it is not installed. Built without its header, or where it cannot be opened, Offered() is false and MASTER_ADDR
// has to say it instead. One thread at a time.
#pragma once

#include <string>

#include "core/base/status.h"

namespace switchyard::pmix {

bool Offered();               // the launcher offers it and the library is here
std::string WhyNotOffered();  // " (…)" where the launcher offers it and the library is not here; else ""
Status Start();
Status Publish(const std::string& key, const std::string& value);
StatusOr<std::string> LookUp(const std::string& key, int rank, int timeout_ms);
// The process leaves PMIx by itself when it exits, for mpirun takes an exit without that for a crash; but not after
// this, which any thread calls when a peer has failed: leaving could then wait for it.
void Abandon();

}  // namespace switchyard::pmix
