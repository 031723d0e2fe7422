// Compiles SYCL sources at run time and launches their kernels; kernels/xpu.py calls it through
// ctypes. Built with a plain C++ compiler against the SYCL runtime's headers.
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <sycl/sycl.hpp>

namespace experimental = sycl::ext::oneapi::experimental;

namespace {

struct Program {
  sycl::queue queue;
  std::optional<sycl::kernel_bundle<sycl::bundle_state::executable>> kernels;
};

thread_local std::string last_error;

// Runs an action; an exception becomes an error message and `failed`.
template <typename T, typename Action>
T guarded(T failed, const Action& action) {
  try {
    return action();
  } catch (const std::exception& error) {
    last_error = error.what();
    return failed;
  }
}

}  // namespace

#define DFLASH2_API extern "C" __attribute__((visibility("default")))

DFLASH2_API const char* dflash2_error() { return last_error.c_str(); }

// `queue`: PyTorch's sycl::queue, or null for the first CPU device, which tests use.
DFLASH2_API Program* dflash2_open(void* queue) {
  return guarded<Program*>(nullptr, [&] {
    if (queue != nullptr) return new Program{*static_cast<sycl::queue*>(queue), {}};
    return new Program{sycl::queue(sycl::cpu_selector_v, sycl::property::queue::in_order()), {}};
  });
}

DFLASH2_API void dflash2_close(Program* program) { delete program; }

DFLASH2_API int dflash2_build(Program* program, const char* source, const char* const* names,
                              const char* const* texts, int files, const char* options) {
  return guarded(1, [&] {
    const auto context = program->queue.get_context();
    experimental::include_files headers;
    for (int i = 0; i < files; ++i) headers.add(names[i], texts[i]);
    auto bundle = experimental::create_kernel_bundle_from_source(
        context, experimental::source_language::sycl, std::string(source),
        experimental::properties{headers});
    std::string log;
    program->kernels.emplace(experimental::build(
        bundle, experimental::properties{experimental::build_options{std::string(options)},
                                         experimental::save_log{&log}}));
    return 0;
  });
}

// Every argument is 64 bits wide: an address where `is_pointer` says so, otherwise an integer.
// `queue`: PyTorch's current sycl::queue, of the device that the program was opened with; or null.
DFLASH2_API int dflash2_launch(Program* program, void* queue, const char* kernel, int64_t groups,
                               int64_t group_size, const int64_t* values, const char* is_pointer,
                               int count) {
  return guarded(1, [&] {
    const sycl::kernel entry = program->kernels.value().ext_oneapi_get_kernel(kernel);
    sycl::queue& current = queue ? *static_cast<sycl::queue*>(queue) : program->queue;
    current.submit([&](sycl::handler& handler) {
      for (int i = 0; i < count; ++i) {
        if (is_pointer[i]) {
          handler.set_arg(i, reinterpret_cast<void*>(values[i]));
        } else {
          handler.set_arg(i, values[i]);
        }
      }
      handler.parallel_for(sycl::nd_range<1>(groups * group_size, group_size), entry);
    });
    return 0;
  });
}

DFLASH2_API int dflash2_wait(Program* program) {
  return guarded(1, [&] {
    program->queue.wait_and_throw();
    return 0;
  });
}

// Memory that host and device share, for devices that PyTorch does not know.
DFLASH2_API void* dflash2_allocate(Program* program, int64_t bytes) {
  return guarded<void*>(nullptr, [&] { return sycl::malloc_shared(bytes, program->queue); });
}

DFLASH2_API void dflash2_free(Program* program, void* memory) {
  sycl::free(memory, program->queue);
}
