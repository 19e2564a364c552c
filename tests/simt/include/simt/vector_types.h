#pragma once

// CUDA's vector types, with CUDA's alignment: an access of 16 bytes at another address is caught by
// UndefinedBehaviorSanitizer.

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_size = 1, unsigned y_size = 1, unsigned z_size = 1)
      : x(x_size), y(y_size), z(z_size) {}
};

#define SIMT_VECTORS(T, name, align2, align4)                \
  struct alignas(align2) name##2 {                           \
    T x, y;                                                  \
  };                                                         \
  struct alignas(align4) name##4 {                           \
    T x, y, z, w;                                            \
  };                                                         \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIMT_VECTORS(int, int, 8, 16)
SIMT_VECTORS(unsigned, uint, 8, 16)
SIMT_VECTORS(float, float, 8, 16)
SIMT_VECTORS(unsigned short, ushort, 4, 8)
SIMT_VECTORS(unsigned char, uchar, 2, 4)
#undef SIMT_VECTORS

struct alignas(16) double2 {
  double x, y;
};
inline double2 make_double2(double x, double y) { return {x, y}; }
