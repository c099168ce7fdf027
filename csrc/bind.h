// What the files of the Python binding share.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"
#include "model.h"

namespace headstart {

struct SharedModel {
  std::shared_ptr<Model> model;
  std::mutex mutex;
};

struct SharedCache {
  std::shared_ptr<SharedModel> owner;
  std::shared_ptr<Cache> cache;

  // Waits for passes under way, without holding up the interpreter meanwhile.
  template <class Work>
  auto locked(Work work) const {
    nanobind::gil_scoped_release release;
    std::lock_guard lock(owner->mutex);
    return work(*cache);
  }
};

using Bits = nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cpu>;
// Of a list of (name, array, type): float32, float16, or bfloat16 as 16-bit numbers. `arrays` keeps what they point into.
std::vector<Tensor> tensors_of(const nanobind::list& items, std::vector<Bits>& arrays);
std::vector<int32_t> integers(nanobind::handle sequence, const char* name);  // any sequence of whole numbers, arrays included
nanobind::object new_array(std::initializer_list<size_t> shape, float*& data);  // of float32, not initialised
std::shared_ptr<SharedCache> open_cache(const std::shared_ptr<SharedModel>& shared);
const Kernels& kernels_for(const std::string& name);                  // throws std::invalid_argument, naming those there are
std::optional<Type> quantized_type(const std::optional<std::string>& name);  // throws std::invalid_argument
std::pair<float*, nanobind::capsule> new_floats(size_t n);            // not initialised; the capsule owns them
void bind_rows(nanobind::module_& m);
void bind_kernels(nanobind::module_& m);
void bind_file(nanobind::module_& m);
void bind_head(nanobind::module_& m);
void bind_products(nanobind::module_& m);

}  // namespace headstart
