# oneDNN with the v3 API, as the target switchyard_onednn, where one is found:
#   1. a CMake package `dnnl` of at least 3.1: the distribution's, or the one that dnnl_DIR or CMAKE_PREFIX_PATH names;
#   2. the one that tools/setup unpacked into .deps/onednn. It is copied into lib/switchyard of the build and the
#      install tree, one folder above the plugins, whose run path is $ORIGIN/.. : both trees can be moved as a whole.
# Without either the target does not exist; whoever needs it skips itself and says so.
find_package(dnnl 3.1 CONFIG QUIET)
set(bundled ${CMAKE_SOURCE_DIR}/.deps/onednn)
if(dnnl_FOUND)
  add_library(switchyard_onednn INTERFACE)
  target_link_libraries(switchyard_onednn INTERFACE DNNL::dnnl)
  message(STATUS "oneDNN ${dnnl_VERSION}: ${dnnl_DIR}")
elseif(EXISTS ${bundled}/lib/libdnnl.so.3)
  add_library(switchyard_onednn SHARED IMPORTED GLOBAL)
  set_target_properties(switchyard_onednn PROPERTIES
    IMPORTED_LOCATION ${bundled}/lib/libdnnl.so.3
    IMPORTED_SONAME libdnnl.so.3
    INTERFACE_INCLUDE_DIRECTORIES ${bundled}/include)
  file(COPY ${bundled}/lib/libdnnl.so.3 DESTINATION ${CMAKE_BINARY_DIR}/lib/switchyard)
  install(FILES ${bundled}/lib/libdnnl.so.3 DESTINATION lib/switchyard)
  install(DIRECTORY ${bundled}/share/ DESTINATION share/doc/switchyard/onednn)
  message(STATUS "oneDNN: ${bundled}")
else()
  message(STATUS "oneDNN 3.1 or later: not found (tools/setup installs it)")
endif()
