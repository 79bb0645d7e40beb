// The index of a tar archive: where each member's bytes lie. Reads ustar, GNU long names and pax headers.
// Thread-safe: a function on the caller's objects.
#pragma once

#include <functional>

#include "core/data/files.h"

namespace switchyard {

// Reads `count` bytes at `offset` into `target`, or fails.
using ReadAtFunction = std::function<Status(int64_t offset, int64_t count, uint8_t* target)>;

// Appends every file and folder of the archive of `size` bytes, in archive order, then the links to files of it;
// devices are left out. lost_links: gets the names of links to folders and to what the archive does not hold.
// DataLoss where a header's checksum is wrong or a member reaches past the end, with its offset and name.
Status IndexTar(const ReadAtFunction& read_at, int64_t size, std::vector<FileTree::Entry>* entries,
                std::vector<std::string>* lost_links);

}  // namespace switchyard
