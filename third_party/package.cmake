# Installs the libraries, their headers under include/lockstep/, the program `lockstep`, and the
# files by which find_package(Lockstep) finds them.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

if(LOCKSTEP_CUDA STREQUAL "EMULATED")
  return()  # for tests alone
endif()
if(LOCKSTEP_FETCHED)
  list(JOIN LOCKSTEP_FETCHED ", " fetched)
  # A fetched library lives in this build tree alone; an installed one would point there.
  message(NOTICE "Lockstep cannot be installed from this build: it was built with its own copy of "
                 "${fetched}. ${LOCKSTEP_HOW_TO_GET}")
  return()
endif()

install(TARGETS lockstep lockstep_kernels lockstep_core lockstep_comm lockstep_nn
        EXPORT LockstepTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# Finds CUDA's libraries where they were, which need not be where a system looks.
set_target_properties(lockstep_cli PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS lockstep_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY kernels core comm nn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep
        FILES_MATCHING PATTERN "*.h" PATTERN "lockstep.h" EXCLUDE)
install(FILES nn/lockstep.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
install(EXPORT LockstepTargets NAMESPACE lockstep:: DESTINATION ${config_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/LockstepConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
                              INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
              ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindxxHash.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindcuDNN.cmake
        DESTINATION ${config_dir})
