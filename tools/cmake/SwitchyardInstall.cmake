# cmake --install: the program, its plugins beside it in a relocatable tree, and the SDK, found by find_package(switchyard):
#   switchyard::abi         the C headers of core/abi and nothing else: all that a plugin needs
#   switchyard::switchyard  the C++ library with its third-party packages
#
#   bin/switchyard   lib/switchyard/plugins/*.so, *.json   lib/switchyard/*.a   lib/cmake/switchyard   include/switchyard/core/...
include(CMakePackageConfigHelpers)
set(config_dir lib/cmake/switchyard)
get_property(libraries GLOBAL PROPERTY SWITCHYARD_LIBRARIES)
get_property(plugins GLOBAL PROPERTY SWITCHYARD_PLUGINS)

add_library(switchyard_abi INTERFACE)
target_include_directories(switchyard_abi INTERFACE $<INSTALL_INTERFACE:include/switchyard>)
set_target_properties(switchyard_abi PROPERTIES EXPORT_NAME abi)
install(TARGETS switchyard_abi EXPORT abi)
install(EXPORT abi FILE switchyardAbi.cmake NAMESPACE switchyard:: DESTINATION ${config_dir})

# Also the targets of ours that those libraries stand on, such as generated code.
set(queue ${libraries})
while(queue)
  list(POP_FRONT queue library)
  get_target_property(needed ${library} INTERFACE_LINK_LIBRARIES)
  foreach(target ${needed})
    string(REGEX REPLACE "^.<LINK_ONLY:(.*)>$" "\\1" target "${target}")
    if(target MATCHES "^switchyard_" AND TARGET ${target} AND NOT target IN_LIST libraries)
      list(APPEND libraries ${target})
      list(APPEND queue ${target})
    endif()
  endforeach()
endwhile()

add_library(switchyard_sdk INTERFACE)
target_link_libraries(switchyard_sdk INTERFACE ${libraries})
set_target_properties(switchyard_sdk PROPERTIES EXPORT_NAME switchyard)
install(TARGETS switchyard_sdk ${libraries} EXPORT library ARCHIVE DESTINATION lib/switchyard)
install(EXPORT library FILE switchyardLibrary.cmake NAMESPACE switchyard:: DESTINATION ${config_dir})

foreach(folder core models)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/${folder} DESTINATION include/switchyard FILES_MATCHING PATTERN "*.h" PATTERN "*.inc")
endforeach()
foreach(plugin ${plugins})
  install(TARGETS ${plugin} LIBRARY DESTINATION lib/switchyard/plugins)
  install(FILES ${SWITCHYARD_PLUGIN_DIR}/${plugin}.json DESTINATION lib/switchyard/plugins)
endforeach()
if(TARGET switchyard)
  install(TARGETS switchyard RUNTIME DESTINATION bin)
endif()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/switchyardConfig.cmake.in ${CMAKE_BINARY_DIR}/switchyardConfig.cmake
                              INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/switchyardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/switchyardConfig.cmake ${CMAKE_BINARY_DIR}/switchyardConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/SwitchyardPackages.cmake
        DESTINATION ${config_dir})
# The guide, and what it cites, in the folders that they have in the tree.
set(documents share/doc/switchyard)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${documents})
install(FILES ${CMAKE_SOURCE_DIR}/backends/PORTING.md DESTINATION ${documents}/backends)
install(FILES ${CMAKE_SOURCE_DIR}/backends/interposers/README.md DESTINATION ${documents}/backends/interposers)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/backends/null ${CMAKE_SOURCE_DIR}/backends/reference DESTINATION ${documents}/backends)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/core/abi DESTINATION ${documents}/core FILES_MATCHING PATTERN "*.md")
install(PROGRAMS ${CMAKE_SOURCE_DIR}/tools/new_backend DESTINATION bin RENAME switchyard_new_backend)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/tools/backend_template DESTINATION share/switchyard)
