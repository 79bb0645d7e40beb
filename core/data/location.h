// Where a dataset's files are: in `--data`, in $SWITCHYARD_DATA/<name>, in the user's cache folder, or on the official
// site, from where they are fetched once (the curl program) and accepted only with the right SHA-256 (the sha256sum
// program). Processes that fetch at once take turns by a file lock.
// Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

struct Download {
  struct File {
    std::string name, sha256;
    uint64_t bytes = 0;  // which it has; no more are fetched
  };
  std::vector<std::string> sites;  // each ends with '/'; tried in order
  std::vector<File> files;
};

Download FashionMnistDownload();
Download MnistDownload();
Download Cifar10Download();

// The folder or archive of dataset `name`. `data` is what the user gave. `download` is null for data that no
// official site has as files that we read; where `fetch` is false, nothing is fetched.
// NotFound says every place that was tried and where to put which file.
StatusOr<std::string> LocateData(const std::string& name, const std::optional<std::string>& data,
                                 const Download* download, bool fetch);

// Fetches every file that `folder` lacks, creating it. A file appears under its name only whole and verified. Gives up
// after a few seconds where the site cannot be reached. Unavailable: no site answered; DataLoss: wrong SHA-256.
Status FetchFiles(const Download& download, const std::string& folder);

}  // namespace switchyard
