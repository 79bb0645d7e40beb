# The third-party packages of the C++ library, found the same way by the build and by find_package(switchyard).
# Required: a build without them is refused by CMake, naming the package; tools/setup installs them all.
# PMIx and hwloc are optional, as PkgConfig::PMIX and PkgConfig::HWLOC: test with if(TARGET ...).
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Protobuf REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG REQUIRED)
find_package(JPEG REQUIRED)
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(PMIX QUIET IMPORTED_TARGET pmix)
  pkg_check_modules(HWLOC QUIET IMPORTED_TARGET hwloc)
endif()
