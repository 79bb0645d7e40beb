#include "tests/runtime/plugin_folder.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/base/environment.h"

namespace switchyard {

namespace fs = std::filesystem;

void PluginFolder::SetUp() {
  root_ = (fs::temp_directory_path() / "plugins-XXXXXX").string();
  ASSERT_NE(mkdtemp(root_.data()), nullptr);
  folder_ = root_ + "/plugins";
  fs::create_directory(folder_);
  setenv("XDG_CACHE_HOME", (root_ + "/cache").c_str(), 1);
}

void PluginFolder::TearDown() { fs::remove_all(root_); }

std::string PluginFolder::Install(const std::string& fault, const std::string& name, const std::string& kind) {
  const std::string built = ProgramFolder() + "/fake_plugins/";
  const std::string own = built + "fake_" + fault + ".so";  // broken when it was built
  const std::string library = "switchyard_backend_" + fault + ".so";
  fs::copy_file(fs::exists(own) ? own : built + "fake_plugin.so", folder_ + "/" + library);
  WriteManifest(fault, {{"name", name}, {"kind", kind}, {"abi", 2}, {"priority", 5}, {"library", library}});
  return folder_ + "/" + library;
}

void PluginFolder::WriteManifest(const std::string& stem, const nlohmann::json& manifest) const {
  std::ofstream(ManifestPath(stem)) << manifest;
}

}  // namespace switchyard
