// A folder of plugins of a test's own, and a cache folder of its own: copies of fake_plugin.so, whose names say what is
// wrong with them.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "nlohmann/json.hpp"

namespace switchyard {

class PluginFolder : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // A fake plugin with that fault and a manifest that calls it `name`; its path.
  std::string Install(const std::string& fault, const std::string& name = "fake", const std::string& kind = "backend");
  void WriteManifest(const std::string& stem, const nlohmann::json& manifest) const;
  std::string ManifestPath(const std::string& stem) const { return folder_ + "/switchyard_backend_" + stem + ".json"; }

  std::string root_, folder_;
};

}  // namespace switchyard
