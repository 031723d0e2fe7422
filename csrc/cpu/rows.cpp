// Launchers of core/rows.h, and the write of keys and values to their slots.
#include "../core/rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "parallel.h"
#include "tensors.h"
#include "types.h"

namespace dflash2 {
namespace {

constexpr int64_t kSerialElements = 1 << 16;

template <typename Body>
void for_each_row(int64_t rows, int64_t width, const Body& body) {
  if (rows * width < kSerialElements) {
    for (int64_t r = 0; r < rows; ++r) body(r);
  } else {
    at::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) body(r);
    });
  }
}

// Rows of a tensor of two or three dimensions whose last one is contiguous.
struct Rows {
  int64_t outer, inner, outer_stride, inner_stride, width;

  explicit Rows(const at::Tensor& x, const char* name)
      : outer(x.size(0)),
        inner(x.dim() == 3 ? x.size(1) : 1),
        outer_stride(x.stride(0)),
        inner_stride(x.dim() == 3 ? x.stride(1) : 0),
        width(x.size(-1)) {
    TORCH_CHECK_VALUE((x.dim() == 2 || x.dim() == 3) && x.stride(-1) == 1, name,
                      " takes two or three dimensions, the last one contiguous, got ", x.sizes());
  }
  int64_t count() const { return outer * inner; }
  int64_t offset(int64_t row) const {
    return row / inner * outer_stride + row % inner * inner_stride;
  }
};

at::Tensor rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                    const at::Tensor& weight, double eps, double weight_offset,
                    bool round_normalized, bool round_sum) {
  const Rows rows(x, "rms_norm");
  TORCH_CHECK_VALUE(weight.numel() == rows.width && weight.scalar_type() == x.scalar_type() &&
                        weight.is_contiguous(),
                    "rms_norm expects ", rows.width, " weights of x's dtype, got ", weight.sizes(),
                    " ", weight.scalar_type());
  TORCH_CHECK_VALUE(
      !residual || (residual->sizes() == x.sizes() && residual->dim() == 2 &&
                    residual->scalar_type() == x.scalar_type() && residual->stride(1) == 1),
      "rms_norm expects a residual of x's two dimensions and dtype");
  const NormStyle style{float(eps), float(weight_offset), round_normalized, round_sum};
  at::Tensor out = at::empty(x.sizes(), x.options());
  with_storage_type(x, "rms_norm", [&](auto type) {
    using T = decltype(type);
    const T* in = static_cast<const T*>(x.const_data_ptr());
    T* added = residual ? static_cast<T*>(residual->mutable_data_ptr()) : nullptr;
    const int64_t added_stride = residual ? residual->stride(0) : 0;
    const T* scales = static_cast<const T*>(weight.const_data_ptr());
    T* result = static_cast<T*>(out.mutable_data_ptr());
    for_each_row(rows.count(), rows.width, [&](int64_t r) {
      thread_local std::vector<float> sums;
      if (int64_t(sums.size()) < rows.width) sums.resize(rows.width);
      rms_norm_row<T>(in + rows.offset(r), added ? added + r * added_stride : nullptr, scales,
                      result + r * rows.width, rows.width, style, sums.data());
    });
  });
  return out;
}

void rotary_embedding(const at::Tensor& positions, const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& cos_sin_cache, bool neox) {
  const int64_t half = cos_sin_cache.size(1) / 2;
  TORCH_CHECK_VALUE(positions.scalar_type() == at::kLong && positions.is_contiguous() &&
                        cos_sin_cache.dim() == 2 && cos_sin_cache.stride(1) == 1,
                    "rotary_embedding expects int64 positions and a cache of two dimensions");
  check_indices("rotary_embedding: position", positions, cos_sin_cache.size(0));
  for (const at::Tensor& x : {q, k}) {
    TORCH_CHECK_VALUE(
        x.dim() == 3 && x.size(2) >= 2 * half && x.size(0) == positions.numel() && x.stride(2) == 1,
        "rotary_embedding expects [", positions.numel(), ", heads, at least ", 2 * half,
        "], the last dimension contiguous, got ", x.sizes());
  }
  const auto rotate = [&](const at::Tensor& x) {
    const Rows heads(x, "rotary_embedding");
    with_storage_type(x, "rotary_embedding", [&](auto x_type) {
      with_storage_type(cos_sin_cache, "rotary_embedding", [&](auto cache_type) {
        using T = decltype(x_type);
        using C = decltype(cache_type);
        T* data = static_cast<T*>(x.mutable_data_ptr());
        const C* cache = static_cast<const C*>(cos_sin_cache.const_data_ptr());
        const int64_t* position = positions.const_data_ptr<int64_t>();
        for_each_row(heads.count(), heads.width, [&](int64_t r) {
          const C* cos = cache + position[r / heads.inner] * cos_sin_cache.stride(0);
          rotate_head(data + heads.offset(r), cos, cos + half, half, neox);
        });
      });
    });
  };
  rotate(q);
  rotate(k);
}

at::Tensor gated_activation(const at::Tensor& x, int64_t activation) {
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.size(-1) % 2 == 0,
                    "gated_activation expects gates and as many values behind them, got ",
                    x.sizes());
  const int64_t width = x.size(-1) / 2;
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = width;
  const at::Tensor rows = x.contiguous();
  at::Tensor out = at::empty(shape, x.options());
  with_storage_type(x, "gated_activation", [&](auto type) {
    using T = decltype(type);
    const T* in = static_cast<const T*>(rows.const_data_ptr());
    T* result = static_cast<T*>(out.mutable_data_ptr());
    for_each_row(out.numel() / std::max<int64_t>(1, width), 4 * width, [&](int64_t r) {
      gated_activation_row(in + 2 * r * width, result + r * width, width, Activation(activation));
    });
  });
  return out;
}

void store_kv(const at::Tensor& k, const at::Tensor& v, at::Tensor& k_cache, at::Tensor& v_cache,
              const at::Tensor& slots) {
  TORCH_CHECK_VALUE(slots.scalar_type() == at::kLong && slots.is_contiguous(),
                    "store_kv expects int64 slots");
  if (slots.numel() == 0) return;
  const auto check = [&](const at::Tensor& x, const at::Tensor& cache) {
    TORCH_CHECK_VALUE(x.dim() >= 1 && cache.dim() >= 1 && cache.size(0) > 0 &&
                          x.scalar_type() == cache.scalar_type() && cache[0].is_contiguous() &&
                          x.size(0) == slots.numel() && x[0].numel() == cache[0].numel(),
                      "store_kv expects ", slots.numel(), " rows like the cache's, got ", x.sizes(),
                      " for ", cache.sizes());
    check_indices("store_kv: slot", slots, cache.size(0));
  };
  check(k, k_cache);
  check(v, v_cache);
  const int64_t* slot = slots.const_data_ptr<int64_t>();
  const auto write = [&](const at::Tensor& x, at::Tensor& cache) {
    const int64_t bytes = cache[0].numel() * cache.element_size();
    const at::Tensor rows = x[0].is_contiguous() ? x : x.contiguous();
    const char* from = static_cast<const char*>(rows.const_data_ptr());
    char* to = static_cast<char*>(cache.mutable_data_ptr());
    const int64_t from_stride = rows.stride(0) * rows.element_size();
    const int64_t to_stride = cache.stride(0) * cache.element_size();
    for (int64_t i = 0; i < slots.numel(); ++i) {
      std::memcpy(to + slot[i] * to_stride, from + i * from_stride, bytes);
    }
  };
  write(k, k_cache);
  write(v, v_cache);
}

}  // namespace

TORCH_LIBRARY_IMPL(dflash2, CPU, m) {
  m.impl("rms_norm", rms_norm);
  m.impl("rotary_embedding", rotary_embedding);
  m.impl("gated_activation", gated_activation);
  m.impl("store_kv", store_kv);
}

}  // namespace dflash2
