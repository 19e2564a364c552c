# Finds xxHash where its package has no CMake files (Debian). Defines xxHash::xxhash and
# xxHash_VERSION. Installed beside LockstepConfig.cmake, which needs it again.
find_path(xxHash_INCLUDE_DIR xxhash.h)
find_library(xxHash_LIBRARY xxhash)
mark_as_advanced(xxHash_INCLUDE_DIR xxHash_LIBRARY)

if(xxHash_INCLUDE_DIR)
  file(STRINGS ${xxHash_INCLUDE_DIR}/xxhash.h lines
       REGEX "^#[ \t]*define[ \t]+XXH_VERSION_(MAJOR|MINOR|RELEASE)[ \t]+[0-9]+")
  string(REGEX REPLACE "[^;0-9]" "" numbers "${lines}")
  string(REPLACE ";" "." xxHash_VERSION "${numbers}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(xxHash REQUIRED_VARS xxHash_LIBRARY xxHash_INCLUDE_DIR
                                  VERSION_VAR xxHash_VERSION)
if(xxHash_FOUND AND NOT TARGET xxHash::xxhash)
  add_library(xxHash::xxhash UNKNOWN IMPORTED)
  set_target_properties(xxHash::xxhash PROPERTIES IMPORTED_LOCATION ${xxHash_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${xxHash_INCLUDE_DIR})
endif()
