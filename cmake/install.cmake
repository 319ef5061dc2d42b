# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` copies: the library with its public headers, a package for find_package and pkg-config, the
# simulator and the program. The tree may be moved as a whole: every file finds the others by relative paths.
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/moxie)
set(simulator_folder lib/moxie/sim)  # where src/driver/driver.cpp looks, whatever the name of the library folder

if(MOXIE_PROGRAM)
  install(TARGETS moxie_program RUNTIME)
endif()
install(TARGETS moxie EXPORT moxie ARCHIVE)
install(TARGETS moxie_c EXPORT moxie LIBRARY)
set_target_properties(moxie_sim PROPERTIES EXPORT_NAME sim)
install(TARGETS moxie_sim EXPORT moxie LIBRARY DESTINATION ${simulator_folder})
install(TARGETS moxie_sim_runtime LIBRARY DESTINATION ${simulator_folder} NAMELINK_SKIP)
install(DIRECTORY include/moxie TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE NOTICE TYPE DOC)

install(EXPORT moxie NAMESPACE moxie:: DESTINATION ${package_folder} FILE moxieTargets.cmake)
configure_package_config_file(cmake/moxieConfig.cmake.in ${PROJECT_BINARY_DIR}/generated/moxieConfig.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/generated/moxieConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/generated/moxieConfig.cmake
  ${PROJECT_BINARY_DIR}/generated/moxieConfigVersion.cmake DESTINATION ${package_folder})

# moxie.pc is for C++ and libmoxie.a, moxie-c.pc for C and libmoxie.so.
file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" to_prefix "${to_prefix}")
foreach(name moxie moxie-c)
  configure_file(cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/generated/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/generated/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
