# Versions of what Lockstep is built on: the one table of them.
#
#   lockstep_pin(<package> <oldest version that is taken from the system, or ANY>
#                <version that is fetched where the system has none> <its archive> <its SHA256>)
#
# Debian 12's packages are what the test suite runs on: Abseil 20220623.1, oneDNN 2.6.3,
# xxHash 0.8.1, nlohmann-json 3.11.2, zlib 1.2.13, OpenSSL 3.0, GoogleTest 1.12.1, Google
# Benchmark 1.7.1. Of the fetched archives GoogleTest, Benchmark, xxHash and nlohmann-json were
# checked against their hash here and built from; Abseil and zlib were built from sources of the
# same version; oneDNN's hash is the one that other projects pin, and that build was not run.
# oneDNN 3 changed its interface, so the newest 2.x is the one to take.
function(lockstep_pin package oldest version url sha256)
  set(LOCKSTEP_OLDEST_${package} ${oldest} PARENT_SCOPE)
  set(LOCKSTEP_VERSION_${package} ${version} PARENT_SCOPE)
  set(LOCKSTEP_URL_${package} ${url} PARENT_SCOPE)
  set(LOCKSTEP_SHA256_${package} ${sha256} PARENT_SCOPE)
endfunction()

# Abseil's versions are dates, and its package accepts none but the very one that was asked for.
lockstep_pin(absl ANY 20220623.1
  https://github.com/abseil/abseil-cpp/archive/refs/tags/20220623.1.tar.gz
  91ac87d30cc6d79f9ab974c51874a704de9c2647c40f6932597329a282217ba8)
lockstep_pin(dnnl 2.5 2.7.3
  https://github.com/oneapi-src/oneDNN/archive/refs/tags/v2.7.3.tar.gz
  a50993aa6265b799b040fe745e0010502f9f7103cc53a9525d59646aef006633)
lockstep_pin(xxHash 0.8.0 0.8.1
  https://github.com/Cyan4973/xxHash/archive/refs/tags/v0.8.1.tar.gz
  3bb6b7d6f30c591dd65aaaff1c8b7a5b94d81687998ca9400082c739a690436c)
lockstep_pin(nlohmann_json 3.10 3.11.2
  https://github.com/nlohmann/json/archive/refs/tags/v3.11.2.tar.gz
  d69f9deb6a75e2580465c6c4c5111b89c4dc2fa94e3a85fcd2ffcd9a143d9273)
lockstep_pin(ZLIB 1.2.11 1.2.13
  https://github.com/madler/zlib/releases/download/v1.2.13/zlib-1.2.13.tar.gz
  b3a24de97a8fdbc835b9833169501030b8977031bcb54b3b3ac13740f846ab30)
lockstep_pin(GTest 1.11 1.12.1
  https://github.com/google/googletest/archive/refs/tags/release-1.12.1.tar.gz
  81964fe578e9bd7c94dfdb09c8e4d6e6759e19967e397dbea48d1c10e45d0df2)
lockstep_pin(benchmark 1.6 1.7.1
  https://github.com/google/benchmark/archive/refs/tags/v1.7.1.tar.gz
  6430e4092653380d9dc4ccb45a1e2dc9259d581f4866dc0759713126056bc1d7)

# These come with a system or a compiler and are never fetched.
set(LOCKSTEP_OLDEST_OpenSSL 1.1.1)
