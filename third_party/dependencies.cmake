# Finds what Lockstep is built on, or fetches it at the versions of versions.cmake.
#
# LOCKSTEP_FETCH=OFF forbids fetching. Without a network, archives laid into
# <build>/_deps/archives as <package>-<version>.tar.gz are taken (their hash is checked), and
# FETCHCONTENT_SOURCE_DIR_<PACKAGE> names sources that are unpacked already.
include(FetchContent)
include(${CMAKE_CURRENT_LIST_DIR}/versions.cmake)
list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})

option(LOCKSTEP_FETCH "Download dependencies that the system does not have" ON)

set(LOCKSTEP_MISSING "")            # neither found nor fetched
set(LOCKSTEP_FETCHED "")            # EXPORTED ones that are built inside this build tree
set(LOCKSTEP_FIND_DEPENDENCIES "")  # the lines by which LockstepConfig.cmake finds them again

string(CONCAT LOCKSTEP_HOW_TO_GET "On Debian or Ubuntu run third_party/install.sh. Elsewhere "
       "install it with the system's packages, or build it and add its prefix to CMAKE_PREFIX_PATH.")

# Downloads the pinned archive of `package` and adds its project to this build.
macro(lockstep_fetch package)
  string(TOUPPER ${package} _upper)
  string(TOLOWER ${package} _lower)
  set(_archive ${FETCHCONTENT_BASE_DIR}/archives/${package}-${LOCKSTEP_VERSION_${package}}.tar.gz)
  if(NOT FETCHCONTENT_SOURCE_DIR_${_upper})
    message(NOTICE "${package} is not installed: fetching ${LOCKSTEP_VERSION_${package}} from "
                   "${LOCKSTEP_URL_${package}}")
    if(NOT EXISTS ${_archive})
      file(DOWNLOAD ${LOCKSTEP_URL_${package}} ${_archive}.part INACTIVITY_TIMEOUT 30
           STATUS _status)
      list(GET _status 0 _code)
      if(_code)
        file(REMOVE ${_archive}.part)
        message(FATAL_ERROR "${package} is not installed and cannot be downloaded (${_status}). "
                            "${LOCKSTEP_HOW_TO_GET} Or lay the archive\n  "
                            "${LOCKSTEP_URL_${package}}\nat\n  ${_archive}")
      endif()
      file(RENAME ${_archive}.part ${_archive})
    endif()
    file(SHA256 ${_archive} _hash)
    if(NOT _hash STREQUAL LOCKSTEP_SHA256_${package})
      message(FATAL_ERROR "${_archive} is not what it should be: want SHA256 "
                          "${LOCKSTEP_SHA256_${package}}, got ${_hash}. Remove the file and "
                          "configure again. ${LOCKSTEP_HOW_TO_GET}")
    endif()
  endif()
  set(_system "")
  if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.25)
    set(_system SYSTEM)  # their headers are not held to our warnings
  endif()
  FetchContent_Declare(${_lower} URL ${_archive} URL_HASH SHA256=${LOCKSTEP_SHA256_${package}}
                       DOWNLOAD_EXTRACT_TIMESTAMP ON SOURCE_SUBDIR "${LOCKSTEP_SUBDIR_${package}}"
                       ${_system})
  FetchContent_MakeAvailable(${_lower})
endmacro()

# Makes `target` of `package` available. EXPORTED: a program that links Lockstep needs it too.
macro(lockstep_require package target)
  cmake_parse_arguments(_require "EXPORTED" "" "COMPONENTS" ${ARGN})
  set(_find ${package})
  if(LOCKSTEP_OLDEST_${package} AND NOT LOCKSTEP_OLDEST_${package} STREQUAL "ANY")
    list(APPEND _find ${LOCKSTEP_OLDEST_${package}})
  endif()
  if(_require_COMPONENTS)
    list(APPEND _find COMPONENTS ${_require_COMPONENTS})
  endif()
  find_package(${_find} QUIET)
  if(TARGET ${target})
    string(TOUPPER ${package} _upper)
    set(_version "")
    foreach(_name ${package}_VERSION ${_upper}_VERSION ${package}_VERSION_STRING)
      if(${_name} AND NOT _version)
        set(_version " ${${_name}}")
      endif()
    endforeach()
    message(STATUS "Found ${package}${_version}")
    if(_require_EXPORTED)
      list(JOIN _find " " _line)
      string(APPEND LOCKSTEP_FIND_DEPENDENCIES "find_dependency(${_line})\n")
    endif()
  elseif(LOCKSTEP_FETCH AND LOCKSTEP_URL_${package})
    lockstep_fetch(${package})
    if(_require_EXPORTED)
      list(APPEND LOCKSTEP_FETCHED ${package})
    endif()
  else()
    list(JOIN _find " " _line)
    string(APPEND LOCKSTEP_MISSING "\n  ${_line}")
  endif()
endmacro()

# How the fetched projects are built. Normal variables win over their options (policy CMP0077).
set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
set(CMAKE_POLICY_VERSION_MINIMUM 3.5)  # CMake 4 refuses older projects without it
set(ABSL_PROPAGATE_CXX_STD ON)
set(ABSL_ENABLE_INSTALL OFF)
set(DNNL_LIBRARY_TYPE STATIC)
set(DNNL_CPU_RUNTIME OMP)
set(DNNL_BUILD_TESTS OFF)
set(DNNL_BUILD_EXAMPLES OFF)
set(XXHASH_BUILD_XXHSUM OFF)
set(XXHASH_BUNDLED_MODE ON)
set(JSON_BuildTests OFF)
set(INSTALL_GTEST OFF)
set(BENCHMARK_ENABLE_TESTING OFF)
set(BENCHMARK_ENABLE_INSTALL OFF)
set(SKIP_INSTALL_ALL ON)  # zlib's
set(LOCKSTEP_SUBDIR_xxHash cmake_unofficial)

set(THREADS_PREFER_PTHREAD_FLAG ON)
lockstep_require(Threads Threads::Threads EXPORTED)
lockstep_require(OpenMP OpenMP::OpenMP_CXX EXPORTED COMPONENTS CXX)
lockstep_require(absl absl::strings EXPORTED)
lockstep_require(dnnl DNNL::dnnl EXPORTED)
lockstep_require(xxHash xxHash::xxhash EXPORTED)
lockstep_require(ZLIB ZLIB::ZLIB EXPORTED)
lockstep_require(OpenSSL OpenSSL::Crypto EXPORTED COMPONENTS Crypto)
lockstep_require(nlohmann_json nlohmann_json::nlohmann_json)
if(LOCKSTEP_BUILD_TESTS)
  lockstep_require(GTest GTest::gmock)
endif()
if(LOCKSTEP_BUILD_BENCH)
  lockstep_require(benchmark benchmark::benchmark)
endif()

if(LOCKSTEP_MISSING)
  message(FATAL_ERROR "Lockstep needs these, and the system does not have them:"
                      "${LOCKSTEP_MISSING}\n${LOCKSTEP_HOW_TO_GET}")
endif()

# zlib's own project knows no name for its users.
if(NOT TARGET ZLIB::ZLIB)
  add_library(lockstep_zlib INTERFACE)
  target_link_libraries(lockstep_zlib INTERFACE zlibstatic)
  target_include_directories(lockstep_zlib SYSTEM INTERFACE ${zlib_SOURCE_DIR} ${zlib_BINARY_DIR})
  add_library(ZLIB::ZLIB ALIAS lockstep_zlib)
endif()

include(${CMAKE_CURRENT_LIST_DIR}/cuda.cmake)
