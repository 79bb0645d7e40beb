# Compiler settings, and the helpers that every folder uses:
#   switchyard_library(name SOURCES ... DEPS ...)            a static library of the core, part of the installed SDK
#   switchyard_runs_once(name ...)                           what training speed does not depend on: compiled with -O1
#   switchyard_add_backend(name SOURCES ... [DEPS ...])      a device plugin in <build>/lib/switchyard/plugins and its manifest
#   switchyard_add_collective(name SOURCES ... [DEPS ...])   the same for a collective
#   switchyard_test(name SOURCES ... DEPS ... LABELS ... [ENVIRONMENT ...] [TIMEOUT seconds] [APART] [SERIAL] [LIMITS])
#                                                            SERIAL, LIMITS: see there
#   switchyard_parallel_test(name RANKS 1 2 4 SOURCES ... DEPS ... [COLLECTIVES mpi shm] [LABELS ...] [TIMEOUT seconds]
#                            [ENVIRONMENT ...] [ALONE_ONCE])
#   switchyard_conformance_tests([TIMEOUT seconds])          `switchyard conform` on every plugin of the build; conform_PLUGIN_options
#                                                            may hold what is asked of one, as --level=Fast
# Options: SWITCHYARD_WERROR, SWITCHYARD_SANITIZE (address,undefined or thread), SWITCHYARD_UNITY; those of the other folders
# stand in their CMakeLists.txt (SWITCHYARD_BACKENDS, SWITCHYARD_COLLECTIVES, SWITCHYARD_TESTS, SWITCHYARD_CUDA…).
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "build type" FORCE)
endif()
option(SWITCHYARD_WERROR "treat warnings in our own code as errors" ON)
option(SWITCHYARD_UNITY "compile each target as a few large sources: faster from cold; OFF builds faster after an edit" ON)
set(SWITCHYARD_SANITIZE "" CACHE STRING "sanitizers: address,undefined or thread; empty for none")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_UNITY_BUILD ${SWITCHYARD_UNITY})
# A batch: small enough with g++ to keep cores busy; clang takes less for all of a target at once.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 24)
if(SWITCHYARD_SANITIZE)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 0)
endif()
# -O3 is for kernels (backends/cpu, collectives/reduction, core/data); the rest builds faster with less, and what runs once, such as
# settings, commands and charts, faster still with -O1.
string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
function(switchyard_runs_once)
  foreach(target ${ARGN})
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endforeach()
endfunction()
# g++ collects its garbage only where a source takes more than 1 GB: it takes a tenth less time, and a sixth more memory.
add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-heapsize=1000000>")
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(SWITCHYARD_PLUGIN_DIR ${CMAKE_BINARY_DIR}/lib/switchyard/plugins)

# Kernels are optimized in debug builds too, whose tests would take too long; for checked memory accesses -O1 does, in half the time.
set(SWITCHYARD_KERNEL_OPTIMIZATION -O3)
if(SWITCHYARD_SANITIZE)
  set(SWITCHYARD_KERNEL_OPTIMIZATION -O1)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
  # What ccache asks for where headers are precompiled; no source of ours uses __TIME__.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
  add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-Xclang -fno-pch-timestamp>")
endif()

if(SWITCHYARD_SANITIZE)
  add_compile_options(-fsanitize=${SWITCHYARD_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${SWITCHYARD_SANITIZE})
endif()
# Test programs are many and sanitized ones large: lld links them in half the time and less.
find_program(SWITCHYARD_LLD ld.lld)
if(SWITCHYARD_LLD AND SWITCHYARD_SANITIZE)
  add_link_options(-fuse-ld=lld)
endif()

include(SwitchyardPackages)
include(SwitchyardOneDnn)

# Includes are written from the root of the repository, in the tree and in the installed SDK alike.
add_library(switchyard_headers INTERFACE)
target_compile_features(switchyard_headers INTERFACE cxx_std_20)
target_include_directories(switchyard_headers INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<INSTALL_INTERFACE:include/switchyard>)

# Warnings for our own code only; users of the SDK do not inherit them.
add_library(switchyard_options INTERFACE)
target_include_directories(switchyard_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(switchyard_options INTERFACE
  -Wall -Wextra -Wno-missing-field-initializers $<$<C_COMPILER_ID:GNU>:-Wno-free-nonheap-object -Wno-restrict>
  $<$<AND:$<BOOL:${SWITCHYARD_UNITY}>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-Wno-subobject-linkage>  # g++ takes unity sources for headers
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-declarations>  # of the C++ library's own headers
  $<$<BOOL:${SWITCHYARD_WERROR}>:-Werror>)

# What nearly every source of the core includes, compiled once: a sixth of the time that clang takes for a source, less with g++.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled_core.cc CONTENT "int switchyard_precompiled_core_is_no_library;\n")
add_library(switchyard_precompiled_core OBJECT ${CMAKE_BINARY_DIR}/precompiled_core.cc)
target_link_libraries(switchyard_precompiled_core PRIVATE
  switchyard_options absl::status absl::statusor fmt::fmt nlohmann_json::nlohmann_json)
target_precompile_headers(switchyard_precompiled_core PRIVATE
  ${CMAKE_SOURCE_DIR}/core/base/json.h <absl/status/statusor.h> <fmt/format.h> <fmt/ranges.h> <algorithm> <array> <atomic> <chrono> <cmath>
  <filesystem> <fstream> <functional> <map> <memory> <mutex> <optional> <set> <span> <string> <thread> <utility> <vector>)

function(switchyard_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC switchyard_headers ${arg_DEPS} PRIVATE $<BUILD_INTERFACE:switchyard_options>)
  target_precompile_headers(${name} REUSE_FROM switchyard_precompiled_core)
  set_property(GLOBAL APPEND PROPERTY SWITCHYARD_LIBRARIES ${name})
endfunction()

# A program that finds the libraries of a bundle (tools/bundle) beside itself, wherever it lies. RPATH and not RUNPATH, because
# only that also serves the libraries which those libraries need.
function(switchyard_runs_from_anywhere program)
  target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
  set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/switchyard" BUILD_WITH_INSTALL_RPATH ON)
endfunction()

function(switchyard_add_plugin kind name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  set(target switchyard_${kind}_${name})
  add_library(${target} MODULE ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE switchyard_options ${arg_DEPS})
  if(NOT SWITCHYARD_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,-z,defs)  # a symbol that nobody defines fails here, not when it is loaded
  endif()
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME ${target} PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${SWITCHYARD_PLUGIN_DIR}
    INSTALL_RPATH "$ORIGIN/.." BUILD_WITH_INSTALL_RPATH ON
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  configure_file(${CMAKE_CURRENT_SOURCE_DIR}/manifest.json ${SWITCHYARD_PLUGIN_DIR}/${target}.json COPYONLY)
  set_property(GLOBAL APPEND PROPERTY SWITCHYARD_PLUGINS ${target})
endfunction()
macro(switchyard_add_backend)
  switchyard_add_plugin(backend ${ARGN})
endmacro()
macro(switchyard_add_collective)
  switchyard_add_plugin(collective ${ARGN})
endmacro()

enable_testing()
find_package(GTest)
include(GoogleTest)
find_program(MPIRUN mpirun)
add_custom_target(unit_tests COMMENT "every test program labelled unit")

function(switchyard_test_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE switchyard_options ${arg_DEPS} switchyard_test_headers GTest::gtest_main)
  target_link_options(${name} PRIVATE $<$<BOOL:${SWITCHYARD_LLD}>:-fuse-ld=lld>)
  target_precompile_headers(${name} REUSE_FROM switchyard_precompiled)  # of tests/CMakeLists.txt, as are the test headers
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  get_property(plugins GLOBAL PROPERTY SWITCHYARD_PLUGINS)
  if(plugins)
    add_dependencies(${name} ${plugins})
  endif()
  if(unit IN_LIST arg_LABELS)
    add_dependencies(unit_tests ${name})
  endif()
endfunction()

# One GoogleTest program; every test case in it is a CTest test of its own, in a sanitized build a fourth of them together. APART: each has
# a process of its own there too, because it leaves behind what another would find. SERIAL: each alone on the machine. LIMITS: they hold
# processes to limits of time, in which a busy machine would leave them behind, but mostly wait: they come last, two at a time.
function(switchyard_test name)
  cmake_parse_arguments(arg "APART;SERIAL;LIMITS" "TIMEOUT" "SOURCES;DEPS;LABELS;ENVIRONMENT" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  # PoCL keeps compiled kernels beside the build, so that only the first test that needs one compiles it. What it leaks then is told
  # to the sanitizer here, since any test that takes all plugins may be that one.
  list(APPEND arg_ENVIRONMENT POCL_CACHE_DIR=${CMAKE_BINARY_DIR}/opencl_kernels
       LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/opencl/pocl_leaks.txt:print_suppressions=0)
  set(places 1)
  set(cost 0)
  if(arg_LIMITS)
    set(places 2)
    set(cost -1)
  endif()
  switchyard_test_program(${name} SOURCES ${arg_SOURCES} DEPS ${arg_DEPS} LABELS ${arg_LABELS})
  if(SWITCHYARD_SANITIZE AND NOT arg_APART)
    # A sanitized process takes longer to start, and to be searched for leaks when it ends, than most cases run.
    math(EXPR timeout "4 * ${arg_TIMEOUT}")
    foreach(part RANGE 3)
      add_test(NAME ${name}_part_${part} COMMAND ${name})
      set_tests_properties(${name}_part_${part} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${timeout}
                           RUN_SERIAL ${arg_SERIAL} PROCESSORS ${places} COST ${cost}
                           ENVIRONMENT "GTEST_TOTAL_SHARDS=4;GTEST_SHARD_INDEX=${part};${arg_ENVIRONMENT}")
    endforeach()
    return()
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_LIST ${name}_cases)
  # gtest_discover_tests cannot carry properties that are lists, so they are set by a file of our own that CTest reads after it.
  set(properties ${CMAKE_CURRENT_BINARY_DIR}/${name}_properties.cmake)
  file(CONFIGURE OUTPUT ${properties} @ONLY CONTENT [[
if(@name@_cases)
  set_tests_properties(${@name@_cases} PROPERTIES LABELS "@arg_LABELS@" TIMEOUT @arg_TIMEOUT@
                       RUN_SERIAL @arg_SERIAL@ PROCESSORS @places@ COST @cost@ ENVIRONMENT "@arg_ENVIRONMENT@")
endif()
]])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${properties})
endfunction()

# One GoogleTest program that every rank runs, registered once for each number of ranks as <name>_<ranks>_ranks, and with
# COLLECTIVES for each plugin, which the program finds in SWITCHYARD_COLLECTIVE. ALONE_ONCE: one rank does without a plugin,
# and is there for the first only.
function(switchyard_parallel_test name)
  cmake_parse_arguments(arg "ALONE_ONCE" "TIMEOUT" "RANKS;SOURCES;DEPS;COLLECTIVES;LABELS;ENVIRONMENT" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  switchyard_test_program(${name} SOURCES ${arg_SOURCES} DEPS ${arg_DEPS} LABELS ${arg_LABELS})
  if(NOT MPIRUN)
    message(STATUS "${name}: not registered, mpirun was not found (tools/setup installs Open MPI)")
    return()
  endif()
  if(NOT arg_COLLECTIVES)
    set(arg_COLLECTIVES any)
  endif()
  foreach(ranks ${arg_RANKS})
    set(collectives ${arg_COLLECTIVES})
    if(ranks EQUAL 1 AND arg_ALONE_ONCE)
      list(GET arg_COLLECTIVES 0 collectives)
    endif()
    foreach(collective ${collectives})
      set(test ${name}_${ranks}_ranks)
      set(places 2)
      set(environment OMP_NUM_THREADS=1 ${arg_ENVIRONMENT})
      if(NOT collective STREQUAL any)
        string(APPEND test _${collective})
        if(collective STREQUAL mpi)
          set(places 4)
        endif()
        list(APPEND environment SWITCHYARD_COLLECTIVE=${collective})
      endif()
      add_test(NAME ${test} COMMAND ${MPIRUN} --bind-to none --oversubscribe --allow-run-as-root -n ${ranks}
                                    $<TARGET_FILE:${name}>)
      # Several ranks share two places, however many they are, and begin early, with tests of one place beside them. With MPI
      # they take four: its ranks look for messages in turn, and where each look waits for a core that others keep busy, a
      # test of 14 s took 157 s.
      set_tests_properties(${test} PROPERTIES LABELS "parallel;${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} ENVIRONMENT "${environment}")
      if(ranks GREATER 1)
        set_tests_properties(${test} PROPERTIES PROCESSORS ${places} COST 100)
      endif()
    endforeach()
  endforeach()
endfunction()

function(switchyard_conformance_tests)
  cmake_parse_arguments(arg "" "TIMEOUT" "" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 900)
  endif()
  get_property(plugins GLOBAL PROPERTY SWITCHYARD_PLUGINS)
  list(FILTER plugins EXCLUDE REGEX "^switchyard_interposer_")  # they have nothing of their own to test
  foreach(plugin ${plugins})
    add_test(NAME conform_${plugin} COMMAND switchyard conform ${conform_${plugin}_options} $<TARGET_FILE:${plugin}>)
    # A plugin whose hardware is not there says so, and the kit stops at its first check.
    set_tests_properties(conform_${plugin} PROPERTIES LABELS conformance TIMEOUT ${arg_TIMEOUT}
                         SKIP_REGULAR_EXPRESSION "load/open: device 0 of 0")
    if(plugin MATCHES "opencl")  # minutes of compiling kernels on one core: first, and others beside it
      set_tests_properties(conform_${plugin} PROPERTIES COST 1000
                           ENVIRONMENT POCL_CACHE_DIR=${CMAKE_BINARY_DIR}/opencl_kernels)
    endif()
  endforeach()
endfunction()
