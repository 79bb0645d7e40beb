// Whose the lines of logging.h are where the ranks of a run are threads of one process.
#pragma once

namespace switchyard {

// Lines that this thread logs from now on are of rank `rank`, whatever SetLogRank said of the process.
void SetLogRankOfThread(int rank, int world);

}  // namespace switchyard
