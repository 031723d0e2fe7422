// Operations on the rows of hidden states: norms, rotary embedding, gated activations. A row's
// result depends on that row only. Arithmetic is float32, results are rounded once.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "simd.h"

namespace dflash2 {

// How a root-mean-square norm rounds and scales; the models differ.
struct NormStyle {
  float eps;
  float weight_offset;    // 1: the weight is stored as its distance from one (Gemma)
  bool round_normalized;  // round to the storage type before the weight is applied
  bool round_sum;         // with a residual: normalise the rounded sum (Gemma), not the exact one
};

template <typename T, typename Function>
inline void for_each_vec(int64_t count, const Function& function) {
  int64_t d = 0;
  for (; d + kLanes <= count; d += kLanes) function(d, kLanes);
  if (d < count) function(d, int(count - d));
}

template <typename T>
inline Vec load_some(const T* p, int count) {
  return count == kLanes ? load(p) : load_partial(p, count);
}

template <typename T>
inline void store_some(T* p, Vec v, int count) {
  count == kLanes ? store(p, v) : store_partial(p, v, count);
}

template <typename T>
inline Vec round_to(Vec v) {
  T rounded[kLanes];
  store(rounded, v);
  return load(rounded);
}

// out = norm(x) or, with a residual, residual = x + residual and out = norm(residual).
// `sums` is scratch for `width` floats.
template <typename T>
void rms_norm_row(const T* x, T* residual, const T* weight, T* out, int64_t width, NormStyle style,
                  float* sums) {
  Vec squares = {};
  for_each_vec<T>(width, [&](int64_t d, int count) {
    Vec value = load_some(x + d, count);
    if (residual != nullptr) {
      value += load_some(residual + d, count);
      store_some(residual + d, value, count);
      if (style.round_sum) value = round_to<T>(value);
    }
    store_some(sums + d, value, count);
    squares += value * value;
  });
  const float scale = 1.0f / std::sqrt(reduce_add(squares) / float(width) + style.eps);
  for_each_vec<T>(width, [&](int64_t d, int count) {
    Vec value = load_some(sums + d, count) * scale;
    if (style.round_normalized) value = round_to<T>(value);
    store_some(out + d, value * (load_some(weight + d, count) + style.weight_offset), count);
  });
}

// Rotates one head in place. cos and sin hold `half` values each; `neox`: the pairs are
// (i, i + half), otherwise (2i, 2i + 1).
template <typename T, typename C>
void rotate_head(T* x, const C* cos, const C* sin, int64_t half, bool neox) {
  if (neox) {
    for_each_vec<T>(half, [&](int64_t d, int count) {
      const Vec a = load_some(x + d, count), b = load_some(x + half + d, count);
      const Vec c = load_some(cos + d, count), s = load_some(sin + d, count);
      store_some(x + d, a * c - b * s, count);
      store_some(x + half + d, b * c + a * s, count);
    });
    return;
  }
  for (int64_t i = 0; i < half; ++i) {
    const Vec pair = load_some(x + 2 * i, 2);
    const float c = load_some(cos + i, 1)[0], s = load_some(sin + i, 1)[0];
    Vec rotated = {};
    rotated[0] = pair[0] * c - pair[1] * s;
    rotated[1] = pair[1] * c + pair[0] * s;
    store_some(x + 2 * i, rotated, 2);
  }
}

enum class Activation : int { kSilu = 0, kGeluTanh = 1 };

inline Vec sigmoid(Vec x) {
  const Vec decay = exp(x < Vec{} ? x : -x);  // of -|x|, so that it never overflows
  return (x < Vec{} ? decay : splat(1.0f)) / (1.0f + decay);
}

// out = activation(gate) * up, the two halves of a row of 2 * width.
template <typename T>
void gated_activation_row(const T* row, T* out, int64_t width, Activation activation) {
  for_each_vec<T>(width, [&](int64_t d, int count) {
    const Vec gate = load_some(row + d, count), up = load_some(row + width + d, count);
    Vec active;
    if (activation == Activation::kSilu) {
      active = gate * sigmoid(gate);
    } else {
      // 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), and (1 + tanh(y)) / 2 = sigmoid(2 y)
      active = gate * sigmoid(1.5957691216057308f * (gate + 0.044715f * gate * gate * gate));
    }
    store_some(out + d, active * up, count);
  });
}

}  // namespace dflash2
