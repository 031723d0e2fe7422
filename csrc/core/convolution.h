// The drafter's local convolutions: a position of a block sees itself and the few before it.
#pragma once

#include <cstdint>

#include "scalar.h"

namespace dflash2 {

// out[t, c] = sum_j (kernel[j, c] + delta[t, j, c / group_size]) * x[t - j, c] + bias[c] for one
// block; taps that reach before the block are zero. Strides are in elements.
template <typename T>
struct ConvolutionView {
  const T* x;                              // [length, channels]
  const T* kernel;                         // [taps, channels]
  const T* delta;                          // [length, taps, groups] or null
  const T* bias;                           // [channels] or null
  T* out;                                  // [length, channels]
  int64_t x_stride;                        // of a position
  int64_t delta_stride, delta_tap_stride;  // of a position, of a tap
  int64_t channels, group_size;
  int length, taps;
};

// Lanes::kWidth neighbouring channels, which belong to one group, at one position.
template <typename Lanes, typename T>
DFLASH2_INLINE void convolve(const ConvolutionView<T>& view, int position, int64_t channel) {
  typename Lanes::Pack sum = {};
  if (view.bias != nullptr) sum = Lanes::load(view.bias + channel);
  const int taps = view.taps < position + 1 ? view.taps : position + 1;
  for (int j = 0; j < taps; ++j) {
    auto weight = Lanes::load(view.kernel + j * view.channels + channel);
    if (view.delta != nullptr) {
      weight += to_float(view.delta[position * view.delta_stride + j * view.delta_tap_stride +
                                    channel / view.group_size]);
    }
    sum += weight * Lanes::load(view.x + (position - j) * view.x_stride + channel);
  }
  Lanes::store(view.out + position * view.channels + channel, sum);
}

// One position; Lanes::kWidth divides group_size, and channels unless there is no delta.
template <typename Lanes, typename Group, typename T>
DFLASH2_INLINE void convolve_position(const Group& group, const ConvolutionView<T>& view,
                                      int position) {
  constexpr int64_t kWidth = Lanes::kWidth;
  const int64_t whole = view.channels / kWidth * kWidth;
  for (int64_t c = group.rank() * kWidth; c < whole; c += group.size() * kWidth) {
    convolve<Lanes>(view, position, c);
  }
  for (int64_t c = whole + group.rank(); c < view.channels; c += group.size()) {
    convolve<Lanes1>(view, position, c);
  }
}

}  // namespace dflash2
