// bfloat16 is the upper half of a float.
#pragma once

#include <cstdint>
#include <cstring>

inline float widen(uint16_t half) {
  uint32_t bits = static_cast<uint32_t>(half) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

// Rounds to nearest, ties to even. Inputs never contain NaN.
inline uint16_t narrow(float wide) {
  uint32_t bits;
  std::memcpy(&bits, &wide, sizeof(bits));
  bits += 0x7fff + ((bits >> 16) & 1);
  return static_cast<uint16_t>(bits >> 16);
}
