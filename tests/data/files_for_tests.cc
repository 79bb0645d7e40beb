#include "tests/data/files_for_tests.h"

#include <jpeglib.h>
#include <png.h>
#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "fmt/format.h"

namespace switchyard {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "switchyard-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::Write(const std::string& name, const Bytes& bytes) const {
  const std::filesystem::path path = path_ / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<long>(bytes.size()));
  return path.string();
}

Image Pattern(int height, int width, int channels) {
  Image image;
  image.Reshape(height, width, channels);
  uint8_t* byte = image.bytes.data();
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) *byte++ = static_cast<uint8_t>(7 * x * x + 13 * y + 29 * c + 3 * x * y);
    }
  }
  return image;
}

uint32_t Crc(const Bytes& bytes) { return static_cast<uint32_t>(crc32_z(0, bytes.data(), bytes.size())); }

Bytes IdxBytes(const std::vector<uint32_t>& dims, const Bytes& elements) {
  Bytes bytes = {0, 0, 8, static_cast<uint8_t>(dims.size())};
  for (const uint32_t dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<uint8_t>(dim >> shift));
  }
  bytes.insert(bytes.end(), elements.begin(), elements.end());
  return bytes;
}

Bytes JpegBytes(const Image& image, int quality, bool progressive) {
  jpeg_compress_struct encoder;
  jpeg_error_mgr errors;
  encoder.err = jpeg_std_error(&errors);
  jpeg_create_compress(&encoder);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&encoder, &memory, &size);
  encoder.image_width = static_cast<unsigned>(image.width);
  encoder.image_height = static_cast<unsigned>(image.height);
  encoder.input_components = image.channels;
  encoder.in_color_space = image.channels == 4 ? JCS_CMYK : image.channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
  jpeg_set_defaults(&encoder);
  jpeg_set_quality(&encoder, quality, TRUE);
  if (progressive) jpeg_simple_progression(&encoder);
  jpeg_start_compress(&encoder, TRUE);
  for (int y = 0; y < image.height; ++y) {
    JSAMPROW row = const_cast<uint8_t*>(image.Row(y));
    jpeg_write_scanlines(&encoder, &row, 1);
  }
  jpeg_finish_compress(&encoder);
  jpeg_destroy_compress(&encoder);
  Bytes bytes(memory, memory + size);
  std::free(memory);
  return bytes;
}

Bytes PngBytes(const Image& image) {
  png_image encoder = {};
  encoder.version = PNG_IMAGE_VERSION;
  encoder.width = static_cast<unsigned>(image.width);
  encoder.height = static_cast<unsigned>(image.height);
  encoder.format = image.channels == 4 ? PNG_FORMAT_RGBA : image.channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(encoder);
  Bytes bytes(size);
  if (!png_image_write_to_memory(&encoder, bytes.data(), &size, 0, image.bytes.data(), 0, nullptr)) {
    throw std::runtime_error("cannot write a PNG");
  }
  bytes.resize(size);
  return bytes;
}

Bytes GzipBytes(const Bytes& bytes) {
  z_stream stream = {};
  if (deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) throw std::runtime_error("zlib");
  Bytes packed(deflateBound(&stream, bytes.size()) + 32);
  stream.next_in = const_cast<uint8_t*>(bytes.data());
  stream.avail_in = static_cast<unsigned>(bytes.size());
  stream.next_out = packed.data();
  stream.avail_out = static_cast<unsigned>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

Bytes NiftiOfBytes(const std::array<int16_t, 3>& extents, const Bytes& voxels, const std::vector<float>& srow) {
  Bytes bytes(352);
  const auto put = [&](auto value, size_t at) { std::memcpy(&bytes[at], &value, sizeof value); };
  put(int32_t{348}, 0);
  const int16_t dim[] = {3, extents[0], extents[1], extents[2]};
  std::memcpy(&bytes[40], dim, sizeof dim);
  put(int16_t{2}, 70);               // datatype: u8
  put(int16_t{8}, 72);               // bitpix
  put(352.0f, 108);                  // vox_offset
  put(int16_t{!srow.empty()}, 254);  // sform_code
  if (!srow.empty()) std::memcpy(&bytes[280], srow.data(), srow.size() * sizeof(float));
  std::memcpy(&bytes[344], "n+1", 4);
  bytes.insert(bytes.end(), voxels.begin(), voxels.end());
  return bytes;
}

namespace {

void AppendTarMember(const std::string& name, const std::string& prefix, char type, const Bytes& content, bool gnu,
                     Bytes* archive) {
  Bytes header(512, 0);
  const auto put = [&](size_t at, const std::string& text) {
    std::copy(text.begin(), text.end(), header.begin() + at);
  };
  put(0, name.substr(0, 100));
  put(100, "0000644");
  put(124, fmt::format("{:011o}", content.size()));
  put(148, "        ");
  header[156] = static_cast<uint8_t>(type);
  put(257, gnu ? "ustar  " : "ustar");
  if (!gnu) put(263, "00");
  put(345, prefix);
  unsigned sum = 0;
  for (const uint8_t byte : header) sum += byte;
  put(148, fmt::format("{:06o}", sum));
  header[154] = 0;
  archive->insert(archive->end(), header.begin(), header.end());
  archive->insert(archive->end(), content.begin(), content.end());
  archive->resize((archive->size() + 511) / 512 * 512);
}

}  // namespace

Bytes TarBytes(const std::vector<std::pair<std::string, Bytes>>& files, TarNames names) {
  Bytes archive;
  for (const auto& [name, content] : files) {
    std::string prefix, rest = name;
    if (name.size() > 100 && names == TarNames::kUstar) {
      const size_t slash = name.rfind('/', 154);
      prefix = name.substr(0, slash), rest = name.substr(slash + 1);
    } else if (name.size() > 100 && names == TarNames::kGnu) {
      Bytes text(name.begin(), name.end());
      text.push_back(0);
      AppendTarMember("././@LongLink", "", 'L', text, true, &archive);
    } else if (name.size() > 100) {
      const size_t length = name.size() + std::string("999 path=\n").size();
      const std::string record = fmt::format("{} path={}\n", length, name);
      AppendTarMember("pax", "", 'x', Bytes(record.begin(), record.end()), false, &archive);
    }
    const bool folder = name.back() == '/';
    AppendTarMember(rest, prefix, folder ? '5' : '0', content, names == TarNames::kGnu, &archive);
  }
  archive.resize(archive.size() + 1024);
  return archive;
}

std::vector<std::pair<std::string, Bytes>> SmallImageFolder(int train, int val) {
  std::vector<std::pair<std::string, Bytes>> files;
  int next = 0;
  for (const char* split : {"train", "val"}) {
    for (const char* name : {"ant", "bee", "cat"}) {
      for (int i = 0; i < (split == std::string("train") ? train : val); ++i, ++next) {
        files.push_back({fmt::format("{}/{}/{:03}.jpg", split, name, i), JpegBytes(Pattern(20 + next % 7, 30, 3))});
      }
    }
    files.push_back({fmt::format("{}/cat/last.png", split), PngBytes(Pattern(25, 25, 3))});
  }
  return files;
}

}  // namespace switchyard
